-- What a slot holds back. `reason` is known from PostgreSQL 17 on.
SELECT
    s.active,
    s.wal_status,
    s.safe_wal_size,
    (pg_catalog.pg_current_wal_lsn() - s.restart_lsn)::bigint AS retained_bytes,
    to_jsonb(s) ->> 'invalidation_reason' AS reason
FROM pg_catalog.pg_replication_slots s
WHERE s.slot_name = %(slot)s
