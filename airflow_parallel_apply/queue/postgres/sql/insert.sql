-- In one order for everybody, so that two modifies that insert the same tasks wait for each other in one direction.
INSERT INTO {schema}.task AS task (
    id, queue, sequence, version, at, claimant, claims, attempt, err, value, created, modified
)
SELECT
    asked.id, asked.queue, asked.sequence, 0, asked.at, NULL, 0, asked.attempt, asked.err, asked.value::json,
    %(now)s::timestamptz, %(now)s::timestamptz
FROM unnest(
    %(ids)s::uuid[], %(queues)s::text[], %(sequences)s::bigint[], %(ats)s::timestamptz[], %(attempts)s::integer[],
    %(errs)s::text[], %(values)s::text[]
) AS asked (id, queue, sequence, at, attempt, err, value)
ORDER BY asked.queue, asked.sequence, asked.id
