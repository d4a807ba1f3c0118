SELECT
    plugin::text,
    database::text,
    coalesce(database <> current_database(), false),
    active_pid,
    wal_status,
    two_phase,
    coalesce((confirmed_flush_lsn - '0/0')::bigint, 0),
    greatest(coalesce((confirmed_flush_lsn - restart_lsn)::bigint, 0), 0),
    -- Known from version 17 on.
    to_jsonb(s) ->> 'invalidation_reason'
FROM pg_catalog.pg_replication_slots s
WHERE slot_name = %(slot)s
