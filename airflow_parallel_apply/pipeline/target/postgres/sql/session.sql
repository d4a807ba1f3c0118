-- name: brief
-- A process that was stopped here would keep its locks for ever, and with them everybody who wants the lease.
SET LOCAL idle_in_transaction_session_timeout = '10s';

-- name: patient
-- The same where it waits for a database or a broker elsewhere, which may be slow.
SET LOCAL idle_in_transaction_session_timeout = '10min';

-- name: end_holders
SELECT coalesce(bool_and(pg_terminate_backend(pid, %(wait_ms)s)), true)
FROM pg_stat_activity
WHERE datname = current_database()
  AND pid <> pg_backend_pid()
  AND starts_with(application_name, %(prefix)s)
  AND (%(scopes)s::text[] IS NULL OR split_part(application_name, ':', 3) = ANY (%(scopes)s::text[]))
  AND coalesce(substring(split_part(application_name, ':', 3) FROM '^g(\d+)x')::bigint < %(from_group)s, true)
  AND split_part(application_name, ':', 4) NOT IN ('', %(token)s);

-- name: held_up
-- Each of the pipeline's sessions that waits for others', with what it waits for. 0 is whoever prepared a transaction.
SELECT w.application_name, coalesce(asked.name, 'a row or a transaction'), holder.pid, b.usename::text,
       nullif(b.application_name, ''), b.state, extract(epoch FROM clock_timestamp() - b.xact_start)::bigint
FROM pg_stat_activity w
CROSS JOIN LATERAL (SELECT DISTINCT unnest(pg_blocking_pids(w.pid)) AS pid) holder
LEFT JOIN pg_stat_activity b ON b.pid = holder.pid
LEFT JOIN LATERAL (
    SELECT l.relation::regclass::text AS name FROM pg_locks l
    WHERE l.pid = w.pid AND NOT l.granted AND l.relation IS NOT NULL
    LIMIT 1
) asked ON true
WHERE w.datname = current_database() AND w.wait_event_type = 'Lock' AND starts_with(w.application_name, %(prefix)s)
  AND NOT coalesce(starts_with(b.application_name, %(prefix)s), false)
ORDER BY 1, 3;
