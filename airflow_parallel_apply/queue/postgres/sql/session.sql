-- Read committed: a claim's second look needs a newer view than its first. The time limit ends the transaction of a
-- client that was stopped in the middle of a modify, so that its locks do not hide tasks from the others.
SELECT
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('idle_in_transaction_session_timeout', '10s', false),
    set_config('timezone', 'UTC', false),
    set_config('datestyle', 'ISO, YMD', false),
    set_config('array_nulls', 'on', false)
