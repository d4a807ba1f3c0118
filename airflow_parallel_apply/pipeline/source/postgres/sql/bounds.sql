-- The rows that these partitions have, each as a condition that no others of the whole table meet, and the columns that it
-- names: their numbers there, names and types. NULL where a target may read it otherwise: bounds of expressions, by a hash,
-- of types whose order or equality a collation decides, of domains, of operators that somebody made, or of all that others
-- leave; and where the table is a partition itself: once it is none any more, rows come that do not meet that one's bounds.
WITH RECURSIVE above AS (
    SELECT
        p.partrelid AS oid,
        p.partdefid AS rest,
        p.partstrat IN ('l', 'r') AND p.partexprs IS NULL AND NOT EXISTS (
            SELECT
            FROM unnest(p.partclass, p.partattrs) AS k (operators, number)
            JOIN pg_catalog.pg_opclass o ON o.oid = k.operators
            JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.number
            WHERE NOT o.opcdefault OR o.opcnamespace <> 'pg_catalog'::regnamespace OR a.atttypid NOT IN (
                'int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype, 'date'::regtype,
                'timestamp'::regtype, 'timestamptz'::regtype, 'uuid'::regtype
            )
        ) AS is_plain,
        ARRAY(
            SELECT a.attname
            FROM unnest(p.partattrs) AS k (number)
            JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = k.number
        ) AS names
    FROM pg_catalog.pg_partitioned_table p
), tree AS (
    SELECT i.inhrelid AS part, a.oid AS root, a.names, a.is_plain AND i.inhrelid <> a.rest AS is_plain
    FROM pg_catalog.pg_inherits i
    JOIN above a ON a.oid = i.inhparent
    WHERE i.inhrelid = ANY (%(oids)s::oid[])
    UNION
    SELECT tree.part, a.oid, a.names || tree.names, tree.is_plain AND a.is_plain AND i.inhrelid <> a.rest
    FROM tree
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = tree.root
    JOIN above a ON a.oid = i.inhparent
)
SELECT
    tree.part::bigint,
    CASE WHEN tree.is_plain AND NOT r.relispartition THEN pg_catalog.pg_get_partition_constraintdef(tree.part) END,
    (
        SELECT jsonb_agg(
            jsonb_build_array(a.attnum, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)) ORDER BY a.attnum
        )
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = tree.root AND a.attname = ANY (tree.names) AND a.attnum > 0
    )
FROM tree
JOIN pg_catalog.pg_class r ON r.oid = tree.root
WHERE tree.root = ANY (%(roots)s::oid[])
