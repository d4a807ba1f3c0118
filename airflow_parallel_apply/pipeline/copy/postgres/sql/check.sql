-- name: closed_schemas
SELECT nspname::text
FROM pg_namespace
WHERE nspname = ANY (%(schemas)s)
  AND NOT (has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE'))
ORDER BY 1;

-- name: types_of_extensions
-- Of the source's tables: the schemas of types that came with an extension, the extensions, and the first columns of such
-- a type, or of one that is made of it.
WITH RECURSIVE used (relation, number, type) AS (
    SELECT a.attrelid, a.attnum, a.atttypid
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE a.atttypid >= 16384 AND (%(columns)s::text[] IS NULL OR a.attname = ANY (%(columns)s::text[]))
    UNION
    SELECT used.relation, used.number, part.type
    FROM used
    JOIN pg_catalog.pg_type t ON t.oid = used.type
    CROSS JOIN LATERAL (
        SELECT t.typelem AS type
        UNION ALL
        SELECT t.typbasetype
        UNION ALL
        SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND NOT a.attisdropped
        UNION ALL
        SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
    ) AS part
    WHERE part.type >= 16384
)
SELECT DISTINCT ON (n.nspname, e.extname)
    n.nspname::text, e.extname::text, tn.nspname || '.' || c.relname, a.attname::text
FROM used
JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = used.type AND d.deptype = 'e'
    AND d.refclassid = 'pg_catalog.pg_extension'::regclass
JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
JOIN pg_catalog.pg_type t ON t.oid = used.type
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
JOIN pg_catalog.pg_class c ON c.oid = used.relation
JOIN pg_catalog.pg_namespace tn ON tn.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = used.relation AND a.attnum = used.number
ORDER BY n.nspname, e.extname, tn.nspname, c.relname, a.attnum;

-- name: extensions
SELECT e.extname::text, n.nspname::text
FROM pg_catalog.pg_extension e
JOIN pg_catalog.pg_namespace n ON n.oid = e.extnamespace
WHERE e.extname = ANY (%(names)s);
