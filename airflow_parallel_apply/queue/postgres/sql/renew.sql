UPDATE {schema}.task AS task
SET version = task.version + 1, at = clock_timestamp() + %(lease)s::interval, modified = clock_timestamp()
WHERE task.id = %(id)s::uuid AND task.version = %(version)s::bigint AND task.claimant = %(claimant)s::text
RETURNING {columns}
