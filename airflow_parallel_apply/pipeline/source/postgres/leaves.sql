-- Whether a table has partitions, and whether all that hold rows have REPLICA IDENTITY FULL, which none inherits.
SELECT c.relkind = 'p', coalesce(bool_and(leaf.relreplident = 'f'), true)
FROM pg_catalog.pg_class c
LEFT JOIN LATERAL pg_catalog.pg_partition_tree(c.oid) p ON c.relkind = 'p' AND p.isleaf
LEFT JOIN pg_catalog.pg_class leaf ON leaf.oid = p.relid
WHERE c.oid = %(oid)s
GROUP BY c.relkind
