-- name: closed_schemas
SELECT nspname::text
FROM pg_namespace
WHERE nspname = ANY (%(schemas)s)
  AND NOT (has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE'))
ORDER BY 1;
