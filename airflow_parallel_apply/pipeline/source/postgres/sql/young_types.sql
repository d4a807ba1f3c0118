-- Types of some labels and some composite types that were altered since they were made, by transactions that are not
-- older than a horizon: the name, the entry in pg_class of a composite type, the name again if it cannot have had another
-- one, the labels of an enum, and who altered it.
-- What was made with the type was written by the command that made it, and so was, and is never altered, the dependency
-- of the type of its arrays; dropped attributes keep their entries. An entry with an xmax, of which an update was tried,
-- tells another command. Transaction ids are compared as the server does it.
SELECT
    t.typname::text,
    t.typrelid::bigint,
    CASE WHEN t.xmin::text = d.xmin::text THEN t.typname::text ELSE '' END,
    array_agg(e.label) FILTER (WHERE e.label IS NOT NULL),
    array_agg(DISTINCT e.writer) FILTER (WHERE e.is_altered)
FROM pg_catalog.pg_type t
LEFT JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_type'::regclass AND d.objid = t.typarray AND d.deptype = 'i'
    AND d.refclassid = 'pg_catalog.pg_type'::regclass AND d.refobjid = t.oid
CROSS JOIN LATERAL (
    SELECT
        entry.label,
        entry.writer,
        (d.xmin::text, d.cmin::text) IS DISTINCT FROM (entry.writer::text, entry.command)
            AND entry.writer >= 3
            AND ((entry.writer - %(horizon)s::bigint) & 4294967295) < 2147483648 AS is_altered
    FROM (
        SELECT l.oid::bigint, l.xmin::text::bigint, CASE WHEN l.xmax = 0 THEN l.cmin::text END
        FROM pg_catalog.pg_enum l
        WHERE l.enumtypid = t.oid
        UNION ALL
        SELECT NULL, a.xmin::text::bigint, CASE WHEN a.xmax = 0 THEN a.cmin::text END
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0
    ) AS entry (label, writer, command)
) AS e
WHERE t.typrelid = ANY (%(relations)s::oid[])
    OR t.oid IN (SELECT l.enumtypid FROM pg_catalog.pg_enum l WHERE l.oid = ANY (%(labels)s::oid[]))
GROUP BY t.oid, t.typname, t.typrelid, t.xmin::text, d.xmin::text
HAVING bool_or(e.is_altered)
ORDER BY t.typname
