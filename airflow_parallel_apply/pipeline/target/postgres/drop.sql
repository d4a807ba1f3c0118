-- name: delete
DELETE FROM {schema}.pipeline WHERE pipeline = %(pipeline)s;

-- name: has_copies
SELECT to_regclass(format('%%I.copy', %(schema)s::text)) IS NOT NULL;

-- name: delete_copy
DELETE FROM {schema}.copy WHERE pipeline = %(pipeline)s;

-- name: other_copies
SELECT count(*) FROM {schema}.copy WHERE finished IS NULL;

-- name: others
SELECT count(*) FROM {schema}.pipeline;

-- name: drop_schema
DROP SCHEMA {schema} CASCADE;
