-- Columns whose values read as names of the server's objects, or have such in them: of regclass and its like, and of
-- privileges. `is_plain`: of such a type itself, or an array of it.
WITH RECURSIVE used AS MATERIALIZED (
    SELECT attrelid, attname, attnum, atttypid, atttypmod
    FROM pg_catalog.pg_attribute
    WHERE attrelid = ANY (%(oids)s::oid[]) AND attnum > 0 AND NOT attisdropped
), held (typed, oid) AS (
    SELECT atttypid, atttypid FROM used
    UNION
    SELECT held.typed, part.oid
    FROM held
    CROSS JOIN LATERAL (
        SELECT * FROM pg_catalog.pg_type WHERE oid = held.oid OFFSET 0
    ) t
    CROSS JOIN LATERAL (
        SELECT t.typbasetype AS oid WHERE t.typtype = 'd'
        UNION ALL
        SELECT t.typelem WHERE t.typelem <> 0
        UNION ALL
        SELECT a.atttypid
        FROM pg_catalog.pg_attribute a
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT r.rngsubtype
        FROM pg_catalog.pg_range r
        WHERE t.typtype IN ('r', 'm') AND t.oid IN (r.rngtypid, r.rngmultitypid)
    ) part
), names AS MATERIALIZED (
    SELECT DISTINCT held.typed
    FROM held
    JOIN pg_catalog.pg_type t ON t.oid = held.oid
    WHERE t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AND (t.typname ~ '^reg' OR t.typname = 'aclitem')
)
SELECT
    u.attrelid::bigint AS root,
    u.attname AS column,
    pg_catalog.format_type(u.atttypid, u.atttypmod) AS type,
    t.typcategory = 'A' AS is_array,
    t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AS is_plain
FROM used u
JOIN names ON names.typed = u.atttypid
JOIN pg_catalog.pg_type t ON t.oid = u.atttypid
ORDER BY u.attrelid, u.attnum
