-- Bytes on disk of each table's rows, TOAST included; of a partitioned one, its leaves'.
SELECT w.oid, coalesce(sum(pg_catalog.pg_table_size(leaf.relid)), 0)::bigint
FROM unnest(%(oids)s::bigint[]) AS w (oid)
JOIN pg_catalog.pg_class c ON c.oid = w.oid::oid
CROSS JOIN LATERAL (
    SELECT c.oid AS relid WHERE c.relkind <> 'p'
    UNION ALL
    SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t WHERE c.relkind = 'p' AND t.isleaf
) leaf
GROUP BY w.oid
