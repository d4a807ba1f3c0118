-- Whether labels or attributes of types, other than those of tables' rows, were written by transactions that are not older
-- than a horizon. Transaction ids are compared as the server does it.
SELECT EXISTS (
    SELECT
    FROM (
        SELECT l.xmin FROM pg_catalog.pg_enum l
        UNION ALL
        SELECT a.xmin
        FROM pg_catalog.pg_class c
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relkind = 'c'
    ) AS entry (writer)
    WHERE writer::text::bigint >= 3 AND ((writer::text::bigint - %(horizon)s::bigint) & 4294967295) < 2147483648
)
