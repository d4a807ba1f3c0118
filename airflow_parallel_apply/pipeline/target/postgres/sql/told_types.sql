-- name: types
-- The types of the columns of the tables that have these names, or have the source's rows, or were renamed by messages.
SELECT a.attrelid::bigint, a.attnum::integer, pg_catalog.format_type(a.atttypid, a.atttypmod)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND (
    (n.nspname, c.relname) IN (
        SELECT w.schema, w.name FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (schema, name)
    )
    OR c.oid IN (SELECT t.target FROM {schema}.applied_table t WHERE t.pipeline = %(pipeline)s)
    OR c.oid IN (SELECT r.oid FROM {schema}.told_rename r WHERE r.pipeline = %(pipeline)s)
);

-- name: note
INSERT INTO {schema}.told_type (pipeline, oid, number, type_name)
VALUES (%(pipeline)s, %(oid)s::bigint::oid, %(number)s, %(type_name)s)
ON CONFLICT DO NOTHING;

-- name: told
SELECT a.attname::text, t.type_name
FROM {schema}.told_type t
JOIN pg_catalog.pg_class c ON c.oid = t.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = t.number
WHERE t.pipeline = %(pipeline)s AND (n.nspname, c.relname) = (%(schema)s, %(table)s);

-- name: any
SELECT EXISTS (SELECT FROM {schema}.told_type WHERE pipeline = %(pipeline)s);

-- name: forget
-- What is noted of columns whose former type, or type of now, is that of these definitions. What another transaction forgets
-- just now is left to it, and waits for nobody: if it is undone, its rows come again.
DELETE FROM {schema}.told_type WHERE ctid = ANY (ARRAY(
    SELECT t.ctid
    FROM unnest(%(schemas)s::text[], %(tables)s::text[], %(names)s::text[], %(types)s::text[])
        AS w (schema, name, column_name, type_name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = w.column_name
    JOIN {schema}.told_type t ON t.pipeline = %(pipeline)s AND t.oid = c.oid AND t.number = a.attnum
    WHERE w.type_name
        = CASE WHEN %(are_followed)s THEN pg_catalog.format_type(a.atttypid, a.atttypmod) ELSE t.type_name END
    FOR UPDATE OF t SKIP LOCKED
));

-- name: forget_all
DELETE FROM {schema}.told_type WHERE pipeline = %(pipeline)s;
