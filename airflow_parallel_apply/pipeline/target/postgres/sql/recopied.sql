-- name: is_there
SELECT to_regclass(format('%%I.recopy', %(schema)s::text)) IS NOT NULL;

-- name: read
-- By whichever name: `check` reads tables that no run has upgraded to version 9 yet.
SELECT
    schema_name AS schema,
    table_name AS table,
    recopy_id,
    coalesce(to_jsonb(r) -> 'copied_offset', to_jsonb(r) -> 'lsn')::bigint AS "offset",
    rows
FROM {schema}.recopy r
WHERE pipeline = %(pipeline)s
ORDER BY schema_name, table_name;

-- name: newer
-- The tables that were copied from a later moment than an offset, with the relations that hold their rows now.
SELECT
    format('%%s.%%s', r.schema_name, r.table_name),
    ARRAY(
        SELECT c.oid::bigint
        FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = r.schema_name AND c.relname = r.table_name
        UNION
        SELECT tree.relid::oid::bigint
        FROM pg_catalog.pg_partition_tree(to_regclass(format('%%I.%%I', r.schema_name, r.table_name))) AS tree
        ORDER BY 1
    )
FROM {schema}.recopy r
WHERE r.pipeline = %(pipeline)s AND r.copied_offset >= %(offset)s
ORDER BY 1;

-- name: types
-- The columns of these relations that have types of users', with these types.
SELECT a.attrelid::bigint, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod)
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%(oids)s::oid[])
    AND a.attnum > 0
    AND NOT a.attisdropped
    AND a.atttypid >= 16384; -- Not the server's own.

-- name: users
-- The tables whose columns have an enum's values, partitions as the tables that they are in; NULL for anything else that
-- is made of it, but for views, and what has no values of its own.
SELECT DISTINCT
    CASE WHEN c.relkind IN ('r', 'p') THEN n.nspname::text END,
    CASE WHEN c.relkind IN ('r', 'p') THEN c.relname::text END
FROM pg_catalog.pg_type t
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
JOIN pg_catalog.pg_depend d
    ON d.refclassid = 'pg_catalog.pg_type'::regclass AND d.refobjid IN (t.oid, t.typarray)
    AND d.classid IN ('pg_catalog.pg_class'::regclass, 'pg_catalog.pg_type'::regclass)
    AND NOT (d.classid = 'pg_catalog.pg_type'::regclass AND d.objid IN (t.oid, t.typarray))
LEFT JOIN pg_catalog.pg_class u ON d.classid = 'pg_catalog.pg_class'::regclass AND u.oid = d.objid
LEFT JOIN pg_catalog.pg_class c ON c.oid = coalesce(pg_catalog.pg_partition_root(u.oid), u.oid)
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE tn.nspname = %(schema)s
    AND t.typname = %(name)s
    AND t.typtype = 'e'
    AND (u.oid IS NULL OR u.relkind NOT IN ('v', 'm', 'i', 'I'));

-- name: alone
-- Those of these names whose tables were copied from a later moment than an offset, and have neither a place among
-- other tables nor others below them, but for their own partitions.
SELECT r.schema_name, r.table_name
FROM {schema}.recopy r
JOIN unnest(%(schemas)s::text[], %(tables)s::text[]) AS wanted (schema, name)
    ON wanted.schema = r.schema_name AND wanted.name = r.table_name
JOIN pg_catalog.pg_namespace n ON n.nspname = r.schema_name
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = r.table_name
WHERE r.pipeline = %(pipeline)s
    AND r.copied_offset >= %(offset)s
    AND c.relkind IN ('r', 'p')
    AND NOT EXISTS (
        SELECT
        FROM pg_catalog.pg_inherits i
        WHERE i.inhrelid = c.oid OR (i.inhparent = c.oid AND c.relkind = 'r')
    );

-- name: locked
-- Which of these relations this transaction has locked as only those do who change rows, columns or partitions.
SELECT DISTINCT l.relation::bigint, l.mode
FROM pg_catalog.pg_locks l
WHERE l.pid = pg_catalog.pg_backend_pid()
    AND l.locktype = 'relation'
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
    AND l.relation = ANY (%(oids)s::oid[])
    AND l.mode IN ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock');

-- name: own
SELECT generation FROM {schema}.pipeline WHERE pipeline = %(pipeline)s FOR UPDATE;

-- name: write
INSERT INTO {schema}.recopy (pipeline, schema_name, table_name, recopy_id, copied_offset, rows)
VALUES (%(pipeline)s, %(schema_name)s, %(table_name)s, %(recopy_id)s, %(copied_offset)s, %(rows)s)
ON CONFLICT (pipeline, schema_name, table_name) DO UPDATE
SET recopy_id = excluded.recopy_id, copied_offset = excluded.copied_offset, rows = excluded.rows, finished = now();
