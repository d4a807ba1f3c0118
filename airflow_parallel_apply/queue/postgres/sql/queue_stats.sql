SELECT
    task.queue,
    count(*),
    count(*) FILTER (WHERE task.at > now() AND task.claimant IS NOT NULL),
    count(*) FILTER (WHERE task.at <= now()),
    count(*) FILTER (WHERE task.at > now() AND task.claimant IS NULL),
    max(task.claims)
FROM {schema}.task
WHERE
    (cardinality(%(prefix)s::text[]) = 0 AND cardinality(%(exact)s::text[]) = 0)
    OR task.queue = ANY(%(exact)s::text[])
    OR EXISTS (SELECT FROM unnest(%(prefix)s::text[]) AS start WHERE starts_with(task.queue, start))
GROUP BY task.queue
ORDER BY task.queue
LIMIT %(limit)s::bigint
