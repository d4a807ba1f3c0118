SELECT EXISTS (
    SELECT FROM {schema}.task
    WHERE
        (cardinality(%(prefix)s::text[]) = 0 AND cardinality(%(exact)s::text[]) = 0)
        OR task.queue = ANY(%(exact)s::text[])
        OR EXISTS (SELECT FROM unnest(%(prefix)s::text[]) AS start WHERE starts_with(task.queue, start))
)
