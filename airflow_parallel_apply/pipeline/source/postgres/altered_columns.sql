-- Columns of some tables that another transaction wrote than the one that made the table, and none that is older than a
-- horizon. What was made with the table, and is never altered, is the dependency of its row type.
SELECT a.attrelid::bigint, a.attname::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_attribute a
    ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = c.reltype AND d.deptype = 'i'
    AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = c.oid
WHERE c.oid = ANY (%(oids)s::oid[]) AND a.xmin <> d.xmin AND a.xmin::text::bigint >= 3
    AND ((a.xmin::text::bigint - %(horizon)s::bigint) & 4294967295) < 2147483648
ORDER BY a.attrelid, a.attnum
