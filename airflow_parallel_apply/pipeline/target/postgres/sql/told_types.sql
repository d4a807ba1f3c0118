-- name: types
-- The types of the columns of all tables that have the source's rows.
SELECT a.attrelid::bigint, a.attnum::integer, pg_catalog.format_type(a.atttypid, a.atttypmod)
FROM {schema}.applied_table t
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.target AND a.attnum > 0 AND NOT a.attisdropped
WHERE t.pipeline = %(pipeline)s;

-- name: note
UPDATE {schema}.applied_table
SET told_types = told_types || jsonb_build_array(jsonb_build_array(%(number)s::integer, %(type_name)s::text))
WHERE pipeline = %(pipeline)s AND target = %(oid)s::bigint::oid;

-- name: told
SELECT a.attname::text, told.value ->> 1
FROM {schema}.applied_table t
JOIN pg_catalog.pg_class c ON c.oid = t.target
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL jsonb_array_elements(t.told_types) AS told
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.target AND a.attnum = (told.value ->> 0)::integer
WHERE t.pipeline = %(pipeline)s AND (n.nspname, c.relname) = (%(schema)s, %(table)s);
