-- Before the change itself, so that tasks of one modify can take each other's places.
UPDATE {schema}.task SET sequence = NULL WHERE id = ANY(%(ids)s::uuid[])
