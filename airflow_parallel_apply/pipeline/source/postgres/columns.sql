-- How the columns of one relation are named and compared now. A domain is compared as its base type.
WITH RECURSIVE wire AS (
    SELECT w.name, w.type, w.modifier, w.number
    FROM unnest(%(names)s::text[], %(types)s::oid[], %(modifiers)s::int[]) WITH ORDINALITY
        AS w (name, type, modifier, number)
), base (number, type) AS (
    SELECT number, type FROM wire
    UNION ALL
    SELECT base.number, t.typbasetype
    FROM base
    JOIN pg_catalog.pg_type t ON t.oid = base.type AND t.typtype = 'd'
)
SELECT
    format_type(w.type, w.modifier),
    format_type(t.oid, NULL),
    t.typtype = 'e',
    coalesce(c.collisdeterministic, true),
    coalesce(a.attnum = ANY (i.indkey), false)
FROM wire w
JOIN base b USING (number)
JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = %(oid)s AND a.attname = w.name AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = %(oid)s AND i.indisprimary
ORDER BY w.number
