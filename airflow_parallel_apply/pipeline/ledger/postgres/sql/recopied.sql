-- name: hold
SELECT pg_try_advisory_lock(hashtextextended('parallel_apply recopy ' || %(pipeline)s, 0));

-- name: is_free
-- For the transaction that asks, so that none begins before it has ended.
SELECT pg_try_advisory_xact_lock_shared(hashtextextended('parallel_apply recopy ' || %(pipeline)s, 0));

-- name: unknown
SELECT EXISTS (
    SELECT FROM {schema}.recopy WHERE pipeline = %(pipeline)s AND recopy_id <> ALL (%(known)s::text[])
);
