-- What stands in the way of tasks that arrive in a queue, by insert or by transfer; `leaving` are the same modify's
-- deletes and transfers. `version` is that of the task which has the id now.
SELECT
    (SELECT task.version FROM {schema}.task WHERE task.id = wanted.id) AS version,
    EXISTS (
        SELECT FROM {schema}.task
        WHERE task.queue = wanted.queue AND task.sequence IS NOT NULL AND task.sequence = wanted.sequence
            AND task.id <> ALL(%(leaving)s::uuid[])
    ) AS taken,
    CASE WHEN wanted.sequence IS NULL THEN EXISTS (
        SELECT FROM {schema}.task
        WHERE task.queue = wanted.queue AND task.sequence IS NOT NULL AND task.id <> ALL(%(leaving)s::uuid[])
    )
    ELSE EXISTS (
        SELECT FROM {schema}.task
        WHERE task.queue = wanted.queue AND task.sequence IS NULL AND task.id <> ALL(%(leaving)s::uuid[])
    ) END AS mixed,
    clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(queues)s::text[], %(sequences)s::bigint[])
    WITH ORDINALITY AS wanted (id, queue, sequence, place)
ORDER BY wanted.place
