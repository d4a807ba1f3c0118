-- Whether nobody can be between a commit time below the one asked and its record. Others' `xact_start` may be hidden.
SELECT clock_timestamp() >= %(time)s::timestamptz + %(grace)s OR NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_stat_activity
    WHERE datname = current_database()
        AND backend_xid IS NOT NULL
        AND coalesce(xact_start, '-infinity') < %(time)s
    UNION ALL
    SELECT
    FROM pg_catalog.pg_prepared_xacts
    WHERE database = current_database() AND prepared < %(time)s
)
