-- Whether labels or attributes of types, other than those of tables' rows, were written by transactions that are not older
-- than a horizon, and older than another one. Transaction ids are compared as the server does it.
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
    WHERE writer::text::bigint >= 3
        AND ((%(ahead)s::bigint - 1 - writer::text::bigint) & 4294967295)
            < least(%(ahead)s::bigint - %(horizon)s::bigint, 2147483648)
)
