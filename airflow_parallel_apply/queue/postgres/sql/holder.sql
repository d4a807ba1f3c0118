SELECT task.queue, task.sequence, task.version, task.claimant, task.at
FROM {schema}.task
WHERE task.id = %(id)s::uuid
