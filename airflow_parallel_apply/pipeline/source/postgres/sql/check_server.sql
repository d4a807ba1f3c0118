-- What a server is, what is left of it, and what we may do there. On Amazon RDS a role membership stands for the
-- attribute REPLICATION.
SELECT
    current_setting('server_version_num')::int AS version,
    current_setting('wal_level') AS wal_level,
    current_setting('server_encoding') AS encoding,
    pg_catalog.pg_is_in_recovery() AS is_standby,
    current_database()::text AS database,
    current_user::text AS role,
    pg_catalog.has_database_privilege(current_database(), 'CREATE') AS can_create,
    r.rolsuper OR r.rolreplication OR EXISTS (
        SELECT
        FROM pg_catalog.pg_roles g
        WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(g.oid, 'MEMBER')
    ) AS can_replicate,
    EXISTS (SELECT FROM pg_catalog.pg_roles g WHERE g.rolname = 'rds_replication') AS is_rds,
    current_setting('max_replication_slots')::int AS max_slots,
    (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int AS slots,
    EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %(slot)s) AS has_slot,
    current_setting('max_wal_senders')::int AS max_senders,
    (SELECT count(*) FROM pg_catalog.pg_stat_replication)::int AS senders,
    coalesce(current_setting('idle_replication_slot_timeout', true), '0') AS idle_timeout,
    (
        SELECT min(p.oid::pg_catalog.regprocedure::text)
        FROM pg_catalog.pg_proc p
        WHERE p.proname = 'pg_logical_emit_message' AND p.proargtypes[2] = 'pg_catalog.text'::pg_catalog.regtype
            AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
    ) AS closed_function
FROM pg_catalog.pg_roles r
WHERE r.rolname = current_user
