-- What a server is, and what we may do there. On Amazon RDS a role membership stands for the attribute REPLICATION.
SELECT
    current_setting('server_version_num')::int,
    current_setting('wal_level'),
    current_setting('server_encoding'),
    (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
    current_database()::text,
    current_user::text,
    pg_catalog.has_database_privilege(current_database(), 'CREATE'),
    r.rolsuper OR r.rolreplication OR EXISTS (
        SELECT
        FROM pg_catalog.pg_roles g
        WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(g.oid, 'MEMBER')
    )
FROM pg_catalog.pg_roles r
WHERE r.rolname = current_user
