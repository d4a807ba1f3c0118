DELETE FROM {schema}.task WHERE id = ANY(%(ids)s::uuid[])
