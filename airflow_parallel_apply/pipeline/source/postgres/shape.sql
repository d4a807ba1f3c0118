-- Whether a table has partitions; whether all that hold rows have REPLICA IDENTITY FULL, which none inherits;
-- and the numbers of the columns that a relation message names, but for generated ones.
SELECT
    c.relkind = 'p',
    coalesce(bool_and(leaf.relreplident = 'f'), true),
    ARRAY(
        SELECT a.attnum::int
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    )
FROM pg_catalog.pg_class c
LEFT JOIN LATERAL pg_catalog.pg_partition_tree(c.oid) p ON c.relkind = 'p' AND p.isleaf
LEFT JOIN pg_catalog.pg_class leaf ON leaf.oid = p.relid
WHERE c.oid = %(oid)s
GROUP BY c.oid, c.relkind
