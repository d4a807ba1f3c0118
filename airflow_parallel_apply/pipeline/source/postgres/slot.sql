SELECT
    plugin::text,
    database::text,
    active_pid,
    wal_status,
    coalesce((confirmed_flush_lsn - '0/0')::bigint, 0)
FROM pg_catalog.pg_replication_slots
WHERE slot_name = %(slot)s
