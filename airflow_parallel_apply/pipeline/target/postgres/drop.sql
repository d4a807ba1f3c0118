-- name: lock
SELECT owner, lease_until, owner IS NOT NULL AND lease_until > now() AS leased
FROM {schema}.pipeline
WHERE pipeline = %(pipeline)s
FOR UPDATE;

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
