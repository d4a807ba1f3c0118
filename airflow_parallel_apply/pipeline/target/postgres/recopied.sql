-- name: hold
SELECT pg_try_advisory_lock(hashtextextended('parallel_apply recopy ' || %(pipeline)s, 0));

-- name: is_free
-- For the transaction that asks, so that none begins before it has ended.
SELECT pg_try_advisory_xact_lock_shared(hashtextextended('parallel_apply recopy ' || %(pipeline)s, 0));

-- name: is_there
SELECT to_regclass(format('%%I.recopy', %(schema)s::text)) IS NOT NULL;

-- name: read
SELECT schema_name AS schema, table_name AS table, recopy_id, lsn, rows
FROM {schema}.recopy
WHERE pipeline = %(pipeline)s
ORDER BY schema_name, table_name;

-- name: own
SELECT generation FROM {schema}.pipeline WHERE pipeline = %(pipeline)s FOR UPDATE;

-- name: write
INSERT INTO {schema}.recopy (pipeline, schema_name, table_name, recopy_id, lsn, rows)
VALUES (%(pipeline)s, %(schema_name)s, %(table_name)s, %(recopy_id)s, %(lsn)s, %(rows)s)
ON CONFLICT (pipeline, schema_name, table_name) DO UPDATE
SET recopy_id = excluded.recopy_id, lsn = excluded.lsn, rows = excluded.rows, finished = now();

-- name: unknown
SELECT EXISTS (
    SELECT FROM {schema}.recopy WHERE pipeline = %(pipeline)s AND recopy_id <> ALL (%(known)s::text[])
);
