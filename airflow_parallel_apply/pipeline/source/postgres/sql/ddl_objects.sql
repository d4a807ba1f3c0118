-- The objects of `ddl_capture.sql` that are there, with their owners; the schema, too, whose owner may replace what is in
-- it. `is_trusted`: we let that role decide what the target runs: a superuser, ourselves, or a role that we were made a
-- member of (a superuser counts as one of every role).
SELECT
    found.name,
    pg_catalog.pg_get_userbyid(found.owner)::text AS owner,
    r.rolsuper OR found.owner = us.oid OR NOT us.rolsuper AND pg_catalog.pg_has_role(found.owner, 'MEMBER') AS is_trusted,
    found.owner = us.oid AS is_ours
FROM (
    SELECT 'function parallel_apply.' || p.proname AS name, p.proowner AS owner, p.pronamespace AS schema
    FROM pg_catalog.pg_proc p
    WHERE p.proname IN ('ddl_signature', 'ddl_is_signed', 'send_signed', 'is_in_progress', 'subtransactions', 'send_ddl', 'sighting', 'capture_ddl', 'only_casts', 'capture_rewrite', 'parts', 'note_parts', 'capture_removal')
    UNION ALL
    SELECT 'table parallel_apply.' || c.relname, c.relowner, c.relnamespace
    FROM pg_catalog.pg_class c
    WHERE c.relname = 'ddl_key'
    UNION ALL
    SELECT 'schema ' || s.nspname, s.nspowner, s.oid
    FROM pg_catalog.pg_namespace s
) AS found
JOIN pg_catalog.pg_namespace n ON n.oid = found.schema
JOIN pg_catalog.pg_roles r ON r.oid = found.owner
JOIN pg_catalog.pg_roles us ON us.rolname = current_user
WHERE n.nspname = 'parallel_apply'
ORDER BY 1
