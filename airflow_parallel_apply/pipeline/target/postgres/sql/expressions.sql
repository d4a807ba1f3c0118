-- name: computed
-- Of tables and their partitions, each of which may have an expression of its own; and the columns that it reads. That is
-- noted of the expression, before version 15 of the column.
SELECT root.oid::bigint, format('%%I.%%I', n.nspname, c.relname), a.attname::text, format_type(a.atttypid, a.atttypmod),
       pg_get_expr(d.adbin, d.adrelid),
       ARRAY(
           SELECT r.attname::text
           FROM pg_depend x
           JOIN pg_attribute r ON r.attrelid = x.refobjid AND r.attnum = x.refobjsubid
           WHERE x.refclassid = 'pg_class'::regclass AND x.refobjid = held.oid AND x.refobjsubid NOT IN (0, a.attnum)
               AND (x.classid, x.objid, x.objsubid) IN (
                   ('pg_attrdef'::regclass, d.oid, 0), ('pg_class'::regclass, held.oid, a.attnum)
               )
           ORDER BY 1
       )
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
