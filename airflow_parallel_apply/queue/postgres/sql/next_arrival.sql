-- Seconds, by the server's clock, until a task of the queues can be claimed; null when there is none.
SELECT EXTRACT(EPOCH FROM min(coming.at) - clock_timestamp())::float8
FROM unnest(%(queues)s::text[]) AS wanted (queue)
CROSS JOIN LATERAL (
    SELECT COALESCE(
        (
            SELECT task.at FROM {schema}.task
            WHERE task.queue = wanted.queue AND task.sequence IS NOT NULL ORDER BY task.sequence LIMIT 1
        ),
        (SELECT min(task.at) FROM {schema}.task WHERE task.queue = wanted.queue AND task.sequence IS NULL)
    ) AS at
) AS coming
