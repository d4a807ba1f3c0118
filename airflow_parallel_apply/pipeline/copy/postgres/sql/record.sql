-- name: is_there
SELECT to_regclass(format('%%I.copy_part', %(schema)s::text)) IS NOT NULL;

-- name: hold
SELECT pg_try_advisory_lock(hashtextextended('parallel_apply copy ' || %(pipeline)s, 0));

-- name: is_held
-- As pg_locks shows an advisory lock by one number: its upper and its lower half.
SELECT EXISTS (
    SELECT
    FROM pg_locks l,
         (SELECT hashtextextended('parallel_apply copy ' || %(pipeline)s, 0) AS number) k
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid = ((k.number >> 32) & 4294967295)::oid AND l.objid = (k.number & 4294967295)::oid
);

-- name: lock
-- Of what was made only what still has its name: in a database that was restored from a dump, the oids are others'.
SELECT copy_id, log_id, finished IS NOT NULL, coalesce(there.oids, '[]')
FROM {schema}.copy
CROSS JOIN LATERAL (
    SELECT jsonb_agg(c.oid::bigint ORDER BY c.oid) AS oids
    FROM jsonb_array_elements(made) AS one
    JOIN pg_class c ON c.oid = (one ->> 0)::bigint::oid AND c.relname = one ->> 2
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = one ->> 1
    WHERE registered IS NULL
) AS there
WHERE pipeline = %(pipeline)s
FOR UPDATE OF copy;

-- name: read
SELECT copy_id, log_id, finished IS NOT NULL, coalesce(there.oids, '[]')
FROM {schema}.copy
CROSS JOIN LATERAL (
    SELECT jsonb_agg(c.oid::bigint ORDER BY c.oid) AS oids
    FROM jsonb_array_elements(made) AS one
    JOIN pg_class c ON c.oid = (one ->> 0)::bigint::oid AND c.relname = one ->> 2
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = one ->> 1
    WHERE registered IS NULL
) AS there
WHERE pipeline = %(pipeline)s;

-- name: register
UPDATE {schema}.copy SET registered = now() WHERE pipeline = %(pipeline)s AND finished IS NOT NULL;

-- name: forget_registered
DELETE FROM {schema}.copy WHERE pipeline = %(pipeline)s AND registered IS NOT NULL;

-- name: begin
INSERT INTO {schema}.copy (pipeline, copy_id, log_id) VALUES (%(pipeline)s, %(copy_id)s, %(log_id)s)
ON CONFLICT (pipeline) DO UPDATE
SET copy_id = excluded.copy_id, log_id = excluded.log_id, began = now(), loaded = NULL, finished = NULL, failure = NULL;

-- name: filled
-- As with what was made, only what still has its name.
SELECT p.target_oid::bigint
FROM {schema}.copy_part p
JOIN {schema}.copy c ON c.pipeline = p.pipeline AND c.registered IS NULL
JOIN pg_class t ON t.oid = p.target_oid AND t.relname = p.task #>> '{{target,1}}'
JOIN pg_namespace n ON n.oid = t.relnamespace AND n.nspname = p.task #>> '{{target,0}}'
WHERE p.pipeline = %(pipeline)s AND p.rows > 0
GROUP BY p.target_oid
ORDER BY p.target_oid;

-- name: still_there
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind = 'p'
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(oids)s::bigint[]::oid[]) AND c.relkind IN ('r', 'p')
ORDER BY c.oid;

-- name: forget_parts
DELETE FROM {schema}.copy_part WHERE pipeline = %(pipeline)s;

-- name: set_made
UPDATE {schema}.copy
SET made = (
    SELECT coalesce(jsonb_agg(jsonb_build_array(c.oid::bigint, n.nspname, c.relname) ORDER BY c.oid), '[]')
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = ANY (%(made)s::bigint[]::oid[])
)
WHERE pipeline = %(pipeline)s AND copy_id = %(copy_id)s;

-- name: add_part
INSERT INTO {schema}.copy_part (copy_id, part, pipeline, target_oid, task, weight)
VALUES (%(copy_id)s, %(part)s, %(pipeline)s, %(target_oid)s, %(task)s, %(weight)s);

-- name: missing
SELECT part FROM {schema}.copy_part WHERE copy_id = %(copy_id)s AND rows IS NULL ORDER BY part;

-- name: part
SELECT p.task, p.rows IS NOT NULL
FROM {schema}.copy_part p
JOIN {schema}.copy c ON c.pipeline = p.pipeline AND c.copy_id = p.copy_id AND c.failure IS NULL
WHERE p.copy_id = %(copy_id)s AND p.part = %(part)s;

-- name: targets
SELECT DISTINCT n.nspname::text, c.relname::text
FROM {schema}.copy_part p
JOIN pg_class c ON c.oid = p.target_oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.copy_id = %(copy_id)s;

-- name: mark
-- The copy's row is locked until the commit, so that a copy that begins anew waits for us or we for it, and then find it gone.
UPDATE {schema}.copy_part p
SET rows = %(rows)s, bytes = %(bytes)s
WHERE p.copy_id = %(copy_id)s AND p.part = %(part)s AND p.rows IS NULL
  AND EXISTS (SELECT FROM {schema}.copy c WHERE c.pipeline = p.pipeline AND c.copy_id = p.copy_id FOR SHARE);

-- name: fail
UPDATE {schema}.copy SET failure = %(failure)s WHERE copy_id = %(copy_id)s AND failure IS NULL;

-- name: loaded
UPDATE {schema}.copy SET loaded = now()
WHERE pipeline = %(pipeline)s AND copy_id = %(copy_id)s
  AND NOT EXISTS (SELECT FROM {schema}.copy_part WHERE copy_id = %(copy_id)s AND rows IS NULL);

-- name: finish
UPDATE {schema}.copy SET finished = now()
WHERE pipeline = %(pipeline)s AND copy_id = %(copy_id)s AND loaded IS NOT NULL;

-- name: progress
SELECT c.copy_id, c.loaded IS NOT NULL, c.finished IS NOT NULL, c.failure,
       extract(epoch FROM coalesce(c.loaded, clock_timestamp()) - c.began)::float8 AS seconds,
       d.parts, d.parts_done, d.rows + coalesce(r.rows, 0), d.bytes + coalesce(r.bytes, 0),
       d.weight, d.weight_done, coalesce(r.bytes, 0)
FROM {schema}.copy c
CROSS JOIN LATERAL (
    SELECT count(*) AS parts, count(p.rows) AS parts_done,
           coalesce(sum(p.rows), 0)::bigint AS rows, coalesce(sum(p.bytes), 0)::bigint AS bytes,
           coalesce(sum(p.weight), 0)::bigint AS weight,
           coalesce(sum(p.weight) FILTER (WHERE p.rows IS NOT NULL), 0)::bigint AS weight_done
    FROM {schema}.copy_part p
    WHERE p.copy_id = c.copy_id
) d
CROSS JOIN LATERAL (
    SELECT sum(g.tuples_processed)::bigint AS rows, sum(g.bytes_processed)::bigint AS bytes
    FROM pg_stat_progress_copy g
    JOIN pg_stat_activity a ON a.pid = g.pid
    WHERE starts_with(a.application_name, %(sessions)s)
) r
WHERE c.pipeline = %(pipeline)s;

-- name: end_twins
SELECT coalesce(bool_and(pg_terminate_backend(pid, %(wait_ms)s)), true)
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = %(name)s;
