-- How the columns of relation messages are typed and compared now, in their order. A domain is compared as its base type.
WITH RECURSIVE wire AS (
    SELECT w.oid, w.name, w.type, w.modifier, w.number
    FROM unnest(%(oids)s::oid[], %(names)s::text[], %(types)s::oid[], %(modifiers)s::int[]) WITH ORDINALITY
        AS w (oid, name, type, modifier, number)
), base (number, type) AS (
    SELECT number, type FROM wire
    UNION ALL
    SELECT base.number, t.typbasetype
    FROM base
    JOIN pg_catalog.pg_type t ON t.oid = base.type AND t.typtype = 'd'
)
SELECT
    CASE WHEN t.oid IS NOT NULL THEN pg_catalog.format_type(w.type, w.modifier) END,
    pg_catalog.format_type(t.oid, NULL),
    coalesce(t.typtype = 'e', false),
    coalesce(c.collisdeterministic, true)
FROM wire w
JOIN base b USING (number)
LEFT JOIN pg_catalog.pg_type t ON t.oid = b.type
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = w.oid AND a.attname = w.name AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
WHERE t.typtype IS DISTINCT FROM 'd'
ORDER BY w.number
