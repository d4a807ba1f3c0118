-- The tables that pipelines follow here, by the id of the log that gets them.
SELECT
    substring(obj_description(p.oid, 'pg_publication') FROM '^parallel_apply: log ([0-9a-f]{32})'),
    array_agg(n.nspname || '.' || c.relname)
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE obj_description(p.oid, 'pg_publication') LIKE 'parallel_apply: log %'
GROUP BY 1
