-- Of each followed table the tables that hold its rows: itself, or its leaves. Sizes in bytes, TOAST included.
SELECT
    w.number - 1,
    n.nspname,
    c.relname,
    am.amname IS NOT DISTINCT FROM 'heap',
    coalesce(pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint, 0),
    coalesce(pg_catalog.pg_table_size(c.oid), 0)
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) WITH ORDINALITY AS w (schema, name, number)
JOIN pg_catalog.pg_namespace rn ON rn.nspname = w.schema
JOIN pg_catalog.pg_class r ON r.relnamespace = rn.oid AND r.relname = w.name
CROSS JOIN LATERAL (
    SELECT r.oid AS relid WHERE r.relkind <> 'p'
    UNION ALL
    SELECT t.relid FROM pg_catalog.pg_partition_tree(r.oid) t WHERE r.relkind = 'p' AND t.isleaf
) leaf
JOIN pg_catalog.pg_class c ON c.oid = leaf.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam
WHERE c.relkind <> 'p'
ORDER BY w.number, n.nspname, c.relname
