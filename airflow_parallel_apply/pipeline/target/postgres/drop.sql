-- name: lock
SELECT owner, lease_until, owner IS NOT NULL AND lease_until > now() AS leased
FROM {schema}.pipeline
WHERE pipeline = %(pipeline)s
FOR UPDATE;

-- name: delete
DELETE FROM {schema}.pipeline WHERE pipeline = %(pipeline)s;

-- name: others
SELECT count(*) FROM {schema}.pipeline;

-- name: drop_schema
DROP SCHEMA {schema} CASCADE;
