-- name: server
SELECT current_setting('server_version_num')::int AS version, current_setting('server_encoding') AS encoding,
       pg_is_in_recovery() AS is_standby, current_database()::text AS database, current_user::text AS role,
       to_regnamespace(quote_ident(%(schema)s)) IS NOT NULL AS has_schema,
       has_database_privilege(current_database(), 'CREATE') AS can_create,
       coalesce(has_schema_privilege(to_regnamespace(quote_ident(%(schema)s)), 'USAGE')
                AND has_schema_privilege(to_regnamespace(quote_ident(%(schema)s)), 'CREATE'), false) AS can_use_schema;

-- name: guards
-- What else looks at the rows of a table while they are applied. Foreign keys have no index by the table that they refer
-- to, so they are read once.
WITH enforced AS (
    SELECT k.oid, k.conrelid, k.confrelid, k.conname::text
    FROM pg_constraint k
    WHERE k.contype = 'f' AND k.conparentid = 0
        AND coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true) -- Known from version 18 on.
), ends AS (
    SELECT oid, conrelid AS relid, conname FROM enforced UNION SELECT oid, confrelid, conname FROM enforced
), keys AS (
    SELECT relid, array_agg(conname ORDER BY conname) AS names FROM ends GROUP BY relid
)
SELECT t.ordinal - 1 AS index, row_security_active(t.oid) AS row_security,
       ARRAY(SELECT g.tgname::text FROM pg_trigger g
             WHERE g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgenabled = 'O' ORDER BY 1) AS triggers,
       ARRAY(SELECT g.tgname::text FROM pg_trigger g
             WHERE g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgenabled IN ('A', 'R') ORDER BY 1) AS always_triggers,
       ARRAY(SELECT r.rulename::text FROM pg_rewrite r
             WHERE r.ev_class = t.oid AND r.ev_enabled = 'O' ORDER BY 1) AS rules,
       ARRAY(SELECT r.rulename::text FROM pg_rewrite r
             WHERE r.ev_class = t.oid AND r.ev_enabled IN ('A', 'R') ORDER BY 1) AS always_rules,
       coalesce(keys.names, ARRAY[]::text[]) AS foreign_keys
FROM unnest(%(oids)s::oid[]) WITH ORDINALITY AS t(oid, ordinal)
LEFT JOIN keys ON keys.relid = t.oid
ORDER BY 1;

-- name: not_owned
SELECT n.nspname, c.relname, current_user::text
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) WITH ORDINALITY AS w (schema, name, ordinal)
JOIN pg_namespace n ON n.nspname = w.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
WHERE NOT pg_has_role(c.relowner, 'USAGE')
ORDER BY w.ordinal;

-- name: nested
-- Of tables, those that are partitions of another of them.
WITH wanted AS (
    SELECT c.oid, n.nspname, c.relname, c.relispartition
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (nspname, relname)
    JOIN pg_namespace n ON n.nspname = w.nspname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
)
SELECT part.nspname, part.relname, whole.nspname, whole.relname
FROM wanted part
CROSS JOIN LATERAL pg_partition_ancestors(part.oid) AS above (oid)
JOIN wanted whole ON whole.oid = above.oid AND whole.oid <> part.oid
WHERE part.relispartition
ORDER BY 1, 2;

-- name: apart
-- Tables whose rows do not share the fate of the positions, of these or partitions of them, however deep: a crash of the
-- server empties unlogged ones; those of a foreign one are another server's. `parent`: what that is a partition of.
SELECT DISTINCT w.nspname || '.' || w.relname AS name, n.nspname::text, c.relname::text,
       CASE WHEN c.relkind = 'f' THEN i.inhparent::regclass::text END AS parent
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (nspname, relname)
JOIN pg_namespace top ON top.nspname = w.nspname
JOIN pg_class t ON t.relnamespace = top.oid AND t.relname = w.relname AND t.relkind IN ('r', 'p')
CROSS JOIN LATERAL (
    SELECT t.oid
    UNION
    SELECT tree.relid FROM pg_partition_tree(t.oid) AS tree WHERE t.relkind = 'p'
) AS held (oid)
JOIN pg_class c ON c.oid = held.oid AND (c.relkind = 'r' AND c.relpersistence = 'u' OR c.relkind = 'f')
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
ORDER BY 1, 2, 3;

-- name: schemas
-- Those in which the role may not do everything, or which it could not make.
SELECT w.name, n.oid IS NOT NULL AS is_there, current_user::text AS role, current_database()::text AS database,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), true) AS can_use,
       CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(n.oid, 'CREATE') END AS can_create
FROM unnest(%(schemas)s::text[]) AS w (name)
LEFT JOIN pg_namespace n ON n.nspname = w.name
ORDER BY 1;
