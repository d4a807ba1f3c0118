WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
wanted AS (
    SELECT asked.*, COALESCE(asked.given_at, moment.now + asked.delay, moment.now) AS at, moment.now
    FROM unnest(
        %(ids)s::uuid[], %(queues)s::text[], %(sequences)s::bigint[], %(ats)s::timestamptz[], %(delays)s::interval[],
        %(claimed)s::boolean[], %(attempts)s::integer[], %(errs)s::text[], %(values)s::text[]
    ) AS asked (id, queue, sequence, given_at, delay, claimed, attempt, err, value)
    CROSS JOIN moment
)
UPDATE {schema}.task AS task
SET version = task.version + 1,
    queue = wanted.queue,
    sequence = wanted.sequence,
    at = wanted.at,
    claimant = CASE WHEN wanted.claimed AND wanted.at > wanted.now THEN %(claimant)s::text END,
    attempt = COALESCE(wanted.attempt, task.attempt),
    err = COALESCE(wanted.err, task.err),
    value = wanted.value::json,
    modified = wanted.now
FROM wanted
WHERE task.id = wanted.id
RETURNING {columns}
