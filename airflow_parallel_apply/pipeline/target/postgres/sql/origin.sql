-- name: closed
-- The functions that the role may not call; and the room that the server has for origins, under the name of its setting.
SELECT ARRAY(
           SELECT p.oid::pg_catalog.regprocedure::text
           FROM pg_catalog.pg_proc p
           WHERE p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace
             AND p.proname IN ('pg_replication_origin_create', 'pg_replication_origin_drop',
                               'pg_replication_origin_session_setup', 'pg_replication_origin_session_reset',
                               'pg_replication_origin_xact_setup')
             AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
           ORDER BY 1
       ) AS functions,
       -- By name: the view of all settings is made whole for each look.
       CASE WHEN current_setting('max_active_replication_origins', true) IS NULL
           THEN 'max_replication_slots' ELSE 'max_active_replication_origins' END AS setting,
       coalesce(current_setting('max_active_replication_origins', true),
                current_setting('max_replication_slots'))::int AS room,
       (SELECT count(*)::int FROM pg_catalog.pg_replication_origin o
        WHERE NOT starts_with(o.roname, {prefix}) AND NOT {is_orphan}) AS others;

-- name: there
SELECT split_part(o.roname, ':', 4)::int FROM pg_catalog.pg_replication_origin o
WHERE starts_with(o.roname, {prefix}) ORDER BY 1;

-- name: create
SELECT pg_catalog.pg_replication_origin_create({prefix} || %(channel)s::int);

-- name: drop
SELECT pg_catalog.pg_replication_origin_drop({prefix} || %(channel)s::int);

-- name: drop_orphans
SELECT pg_catalog.pg_replication_origin_drop(o.roname) FROM pg_catalog.pg_replication_origin o WHERE {is_orphan};

-- name: hold
SELECT pg_catalog.pg_replication_origin_session_setup({prefix} || %(channel)s::int);

-- name: mark
SELECT pg_catalog.pg_replication_origin_xact_setup(
    '0/0'::pg_catalog.pg_lsn + %(offset)s::numeric, coalesce(%(commit_time)s::timestamptz, now())
);

-- name: let_go
SELECT pg_catalog.pg_replication_origin_session_reset();
