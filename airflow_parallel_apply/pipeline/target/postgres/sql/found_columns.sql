-- name: find
-- In the words of a session without a search path, as the source's types are told. `owner`: the uppermost table that an
-- inherited column comes from, where alone it can be altered.
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated::text, a.attnotnull, above.owner,
    t.relkind::text
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class t ON t.oid = a.attrelid
LEFT JOIN LATERAL (
    WITH RECURSIVE above (oid, depth) AS (
        SELECT a.attrelid, 0
        UNION ALL
        SELECT i.inhparent, above.depth + 1
        FROM above
        JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
    )
    SELECT ARRAY[n.nspname::text, c.relname::text] AS owner
    FROM above
    JOIN pg_catalog.pg_class c ON c.oid = above.oid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute o ON o.attrelid = c.oid AND o.attname = a.attname AND NOT o.attisdropped
    WHERE above.depth > 0
    ORDER BY above.depth DESC, 1
    LIMIT 1
) above ON a.attinhcount > 0
WHERE a.attrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))
    AND a.attnum > 0 AND NOT a.attisdropped;
