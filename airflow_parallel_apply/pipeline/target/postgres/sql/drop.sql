-- name: delete
DELETE FROM {schema}.pipeline WHERE pipeline = %(pipeline)s;

-- name: referring
-- The tables whose rows go with a pipeline's; which there are depends on the schema's version.
SELECT c.relname::text
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid
WHERE k.contype = 'f' AND k.confrelid = to_regclass(format('%%I.pipeline', %(schema)s::text))
  AND c.relnamespace = to_regnamespace(quote_ident(%(schema)s))
UNION
SELECT relname::text
FROM pg_class
WHERE relname = 'applied_table' AND relnamespace = to_regnamespace(quote_ident(%(schema)s));

-- name: delete_referring
DELETE FROM {schema}.{table} WHERE pipeline = %(pipeline)s;

-- name: has
SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) IS NOT NULL;

-- name: delete_copy
DELETE FROM {schema}.copy WHERE pipeline = %(pipeline)s;

-- name: other_copies
-- One that is finished is its pipeline's once that is registered, and may wait for it.
SELECT EXISTS (SELECT FROM {schema}.copy WHERE registered IS NULL);

-- name: other_tasks
-- In queues of pipelines whose target is elsewhere, or of anybody else.
SELECT EXISTS (
    SELECT
    FROM {schema}.task
    WHERE NOT starts_with(queue, %(pipeline)s || '/') AND NOT starts_with(queue, %(pipeline)s || '@')
);

-- name: other_pipelines
SELECT EXISTS (SELECT FROM {schema}.pipeline);

-- name: drop_schema
DROP SCHEMA {schema} CASCADE;
