-- In id order, which never changes: two modifies that lock the same rows cannot wait for each other in a circle.
SELECT task.id, task.queue, task.sequence, task.version, task.claimant, task.at, clock_timestamp()
FROM {schema}.task
WHERE task.id = ANY(%(ids)s::uuid[])
ORDER BY task.id
FOR UPDATE
