-- How the columns of a relation message are typed now, in their order; and by number the table's columns, gone ones too,
-- that are compared otherwise than by their text, generated ones that can be part of a replica identity, and those of
-- each unique index. A domain is compared as its base type.
WITH RECURSIVE wire AS (
    SELECT w.type, w.modifier, w.number
    FROM unnest(%(types)s::oid[], %(modifiers)s::int[]) WITH ORDINALITY AS w (type, modifier, number)
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
    ARRAY(
        SELECT a.attnum::int
        FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation AND NOT c.collisdeterministic
        WHERE a.attrelid = %(oid)s AND a.attnum > 0
    ),
    ARRAY(
        SELECT a.attnum::int
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> '' AND a.attnotnull
    ),
    (
        SELECT coalesce(json_agg((i.indkey::int2[])[0:i.indnkeyatts - 1]), '[]')
        FROM pg_catalog.pg_index i
        WHERE i.indrelid = %(oid)s AND i.indisunique AND i.indimmediate AND i.indisvalid
            AND i.indpred IS NULL AND i.indexprs IS NULL
    )
FROM wire w
JOIN base b USING (number)
LEFT JOIN pg_catalog.pg_type t ON t.oid = b.type
WHERE t.typtype IS DISTINCT FROM 'd'
ORDER BY w.number
