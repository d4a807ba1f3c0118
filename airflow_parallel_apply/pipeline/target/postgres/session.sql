-- name: brief
-- A process that was stopped here would keep its locks for ever, and with them everybody who wants the lease.
SET LOCAL idle_in_transaction_session_timeout = '10s';

-- name: end_holders
SELECT coalesce(bool_and(pg_terminate_backend(pid, %(wait_ms)s)), true)
FROM pg_stat_activity
WHERE datname = current_database()
  AND pid <> pg_backend_pid()
  AND starts_with(application_name, %(prefix)s)
  AND (%(scopes)s::text[] IS NULL OR split_part(application_name, ':', 3) = ANY (%(scopes)s::text[]))
  AND coalesce(substring(split_part(application_name, ':', 3) FROM '^g(\d+)x')::bigint < %(from_group)s, true)
  AND split_part(application_name, ':', 4) NOT IN ('', %(token)s);
