-- name: computed
-- Of tables and their partitions, each of which may have an expression of its own.
SELECT root.oid::bigint, format('%%I.%%I', n.nspname, c.relname), a.attname::text, format_type(a.atttypid, a.atttypmod),
       pg_get_expr(d.adbin, d.adrelid)
FROM unnest(%(oids)s::oid[]) AS root (oid)
CROSS JOIN LATERAL (
    SELECT root.oid
    UNION
    SELECT tree.relid
    FROM pg_class p
    CROSS JOIN LATERAL pg_partition_tree(p.oid) tree
    WHERE p.oid = root.oid AND p.relkind = 'p'
) held
JOIN pg_class c ON c.oid = held.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT attname, attnum, atttypid, atttypmod
    FROM pg_attribute
    WHERE attrelid = held.oid AND attnum > 0 AND attgenerated <> ''
    OFFSET 0
) a
JOIN pg_attrdef d ON d.adrelid = held.oid AND d.adnum = a.attnum
ORDER BY root.oid, held.oid <> root.oid, 2, a.attnum;
