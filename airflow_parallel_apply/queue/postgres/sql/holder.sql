SELECT task.queue, task.sequence, task.version, task.claimant, task.at, clock_timestamp()
FROM {schema}.task
WHERE task.id = %(id)s::uuid
