-- Two halves, each in the order of its index: the first tasks of a long queue cost no sort of all of them.
WITH found AS (
    (
        SELECT task.* FROM {schema}.task
        WHERE task.queue = %(queue)s::text AND task.sequence IS NOT NULL
            AND task.sequence >= COALESCE(%(from_sequence)s::bigint, -9223372036854775808)
            AND (%(claimant)s::text IS NULL OR task.claimant = %(claimant)s::text)
            AND (%(ids)s::uuid[] IS NULL OR task.id = ANY(%(ids)s::uuid[]))
        ORDER BY task.sequence LIMIT %(limit)s::bigint
    )
    UNION ALL
    (
        SELECT task.* FROM {schema}.task
        WHERE task.queue = %(queue)s::text AND task.sequence IS NULL
            AND (task.at, task.id) > (
                COALESCE(%(after_at)s::timestamptz, '-infinity'),
                COALESCE(%(after_id)s::uuid, '00000000-0000-0000-0000-000000000000')
            )
            AND (%(claimant)s::text IS NULL OR task.claimant = %(claimant)s::text)
            AND (%(ids)s::uuid[] IS NULL OR task.id = ANY(%(ids)s::uuid[]))
        ORDER BY task.at, task.id LIMIT %(limit)s::bigint
    )
)
SELECT
    task.id, task.queue, task.version, task.sequence, task.at, task.claimant, task.claims, task.attempt, task.err,
    CASE WHEN NOT %(omit_values)s::boolean THEN task.value END, task.created, task.modified
FROM found AS task
ORDER BY task.sequence NULLS LAST, task.at, task.id
LIMIT %(limit)s::bigint
