-- name: named
-- The tables that have these names, and those that are noted already.
SELECT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND (
    (n.nspname, c.relname) IN (
        SELECT w.schema, w.name FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (schema, name)
    )
    OR c.oid IN (SELECT r.oid FROM {schema}.told_rename r WHERE r.pipeline = %(pipeline)s)
);

-- name: names_of
SELECT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::bigint[]::oid[]);

-- name: note
-- The name that the log has stays the first one.
INSERT INTO {schema}.told_rename (pipeline, oid, schema_name, table_name)
VALUES (%(pipeline)s, %(oid)s::bigint::oid, %(schema_name)s, %(table_name)s)
ON CONFLICT (pipeline, oid) DO NOTHING;

-- name: noted
SELECT r.oid::bigint, r.schema_name, r.table_name, n.nspname::text, c.relname::text
FROM {schema}.told_rename r
JOIN pg_catalog.pg_class c ON c.oid = r.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.pipeline = %(pipeline)s AND (r.schema_name, r.table_name) IN (
    SELECT w.schema, w.name FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (schema, name)
);

-- name: forget
DELETE FROM {schema}.told_rename WHERE pipeline = %(pipeline)s AND oid = ANY (%(oids)s::bigint[]::oid[]);
