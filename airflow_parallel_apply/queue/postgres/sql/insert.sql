-- In one order for everybody, so that two modifies that insert the same tasks wait for each other in one direction.
WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now)
INSERT INTO {schema}.task AS task (
    id, queue, sequence, version, at, claimant, claims, attempt, err, value, created, modified
)
SELECT
    asked.id, asked.queue, asked.sequence, 0, COALESCE(asked.given_at, moment.now + asked.delay, moment.now),
    NULL, 0, asked.attempt, asked.err, asked.value::json, moment.now, moment.now
FROM unnest(
    %(ids)s::uuid[], %(queues)s::text[], %(sequences)s::bigint[], %(ats)s::timestamptz[], %(delays)s::interval[],
    %(attempts)s::integer[], %(errs)s::text[], %(values)s::text[]
) AS asked (id, queue, sequence, given_at, delay, attempt, err, value)
CROSS JOIN moment
ORDER BY asked.queue, asked.sequence, asked.id
RETURNING {columns}
