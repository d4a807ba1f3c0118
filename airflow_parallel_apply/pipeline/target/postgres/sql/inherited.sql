-- name: owner
-- The uppermost table from which another one has the constraint, the index or the NOT NULL that a row offends against,
-- and the name that it bears there.
WITH RECURSIVE above (oid, depth) AS (
    SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))::oid, 0
    UNION ALL
    SELECT i.inhparent, above.depth + 1 FROM above JOIN pg_inherits i ON i.inhrelid = above.oid
), index_above (oid, depth) AS (
    SELECT x.indexrelid, 0
    FROM above
    JOIN pg_index x ON x.indrelid = above.oid
    JOIN pg_class c ON c.oid = x.indexrelid AND c.relname = %(constraint)s::text
    WHERE above.depth = 0
    UNION ALL
    SELECT i.inhparent, index_above.depth + 1 FROM index_above JOIN pg_inherits i ON i.inhrelid = index_above.oid
), owner (oid, name, depth) AS (
    SELECT above.oid, k.conname, above.depth
    FROM above
    JOIN pg_constraint k
        ON k.conrelid = above.oid AND k.conname = %(constraint)s::text AND k.contype = 'c' AND NOT k.connoinherit
    UNION ALL
    SELECT above.oid, a.attname, above.depth
    FROM above
    JOIN pg_attribute a ON a.attrelid = above.oid AND a.attname = %(column)s::text AND a.attnotnull
    WHERE %(constraint)s::text IS NULL
    UNION ALL
    SELECT x.indrelid, c.relname, index_above.depth
    FROM index_above
    JOIN pg_index x ON x.indexrelid = index_above.oid
    JOIN pg_class c ON c.oid = index_above.oid
)
SELECT n.nspname::text, c.relname::text, owner.name::text
FROM owner
JOIN pg_class c ON c.oid = owner.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE owner.depth > 0
ORDER BY owner.depth DESC, 1, 2
LIMIT 1;

-- name: owner_of_column
-- The uppermost table from which another one has a column. Names are quoted, all of them.
WITH RECURSIVE named (oid, attname) AS (
    SELECT a.attrelid, a.attname
    FROM pg_attribute a
    WHERE a.attrelid = to_regclass(%(heir)s::text) AND a.attinhcount > 0 AND NOT a.attisdropped
        AND '"' || replace(a.attname, '"', '""') || '"' = %(column)s::text
), above (oid, depth) AS (
    SELECT oid, 0 FROM named
    UNION ALL
    SELECT i.inhparent, above.depth + 1 FROM above JOIN pg_inherits i ON i.inhrelid = above.oid
)
SELECT n.nspname::text, c.relname::text
FROM named
CROSS JOIN above
JOIN pg_attribute a ON a.attrelid = above.oid AND a.attname = named.attname AND NOT a.attisdropped
JOIN pg_class c ON c.oid = above.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE above.depth > 0
ORDER BY above.depth DESC, 1, 2
LIMIT 1;

-- name: heirs
-- The children of a table, at any depth, and no partitions.
WITH RECURSIVE below (oid) AS (
    SELECT i.inhrelid
    FROM pg_inherits i
    WHERE i.inhparent = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))
    UNION
    SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid
)
SELECT n.nspname::text, c.relname::text
FROM below
JOIN pg_class c ON c.oid = below.oid AND NOT c.relispartition
JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2;

-- name: heirs_with_own_column
-- The children of a table, at any depth, and no partitions, that have a column of this name as their own; the names of
-- their columns, and whether this one is noted as one of the source's.
WITH RECURSIVE below (oid) AS (
    SELECT i.inhrelid
    FROM pg_inherits i
    WHERE i.inhparent = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))
    UNION
    SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid
)
SELECT n.nspname::text, c.relname::text, ARRAY(
    SELECT other.attname::text FROM pg_attribute other WHERE other.attrelid = c.oid AND NOT other.attisdropped
), EXISTS (
    SELECT
    FROM {schema}.applied_table known CROSS JOIN LATERAL jsonb_each(known.columns) AS k
    WHERE known.pipeline = %(pipeline)s AND known.target = c.oid AND k.value::integer = a.attnum
)
FROM below
JOIN pg_class c ON c.oid = below.oid AND NOT c.relispartition
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s::text AND a.attinhcount = 0
ORDER BY 1, 2;
