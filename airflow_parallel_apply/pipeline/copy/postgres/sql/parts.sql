-- Of each followed table the tables that hold its rows: itself, or its leaves. Sizes in bytes, TOAST included. By the entries
-- that the snapshot shows, since the server's own functions know partitions that were attached behind it.
WITH RECURSIVE member (number, oid) AS (
    SELECT w.number, r.oid
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) WITH ORDINALITY AS w (schema, name, number)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class r ON r.relnamespace = n.oid AND r.relname = w.name
    UNION ALL
    SELECT m.number, i.inhrelid
    FROM member m
    JOIN pg_catalog.pg_class c ON c.oid = m.oid AND c.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = m.oid AND NOT i.inhdetachpending
)
SELECT
    m.number - 1,
    n.nspname,
    c.relname,
    am.amname IS NOT DISTINCT FROM 'heap',
    coalesce(pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint, 0),
    coalesce(pg_catalog.pg_table_size(c.oid), 0)
FROM member m
JOIN pg_catalog.pg_class c ON c.oid = m.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam
WHERE c.relkind <> 'p'
ORDER BY m.number, n.nspname, c.relname
