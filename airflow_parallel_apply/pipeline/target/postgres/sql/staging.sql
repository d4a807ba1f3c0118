-- name: foreign_staging
SELECT relname
FROM pg_class
WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s))
  AND relkind = 'r'
  AND starts_with(relname, %(prefix)s)
  AND (%(scopes)s::text[] IS NULL OR split_part(relname, '_', 3) = ANY (%(scopes)s::text[]))
  AND coalesce(substring(split_part(relname, '_', 3) FROM '^g(\d+)x')::bigint < %(from_group)s, true)
  AND split_part(relname, '_', 4) <> %(claim)s;

-- name: claim_staging
SELECT relname
FROM pg_class
WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s))
  AND relkind = 'r'
  AND starts_with(relname, %(prefix)s)
  AND split_part(relname, '_', 4) = %(claim)s;

-- name: gone
-- Or not of its table's types any more: to assign a value to another type may change it. Of a domain staging has the type
-- below. A column that is narrower than the source's has a check in staging in place of its length.
SELECT wanted.name, staging.oid IS NOT NULL
FROM unnest(%(names)s::text[], %(tables)s::oid[]) AS wanted (name, of_table)
CROSS JOIN LATERAL (SELECT to_regclass(format('%%I.%%I', %(schema)s::text, wanted.name)) AS oid) AS staging
WHERE staging.oid IS NULL OR EXISTS (
    SELECT
    FROM pg_attribute s
    JOIN pg_attribute t ON t.attrelid = wanted.of_table AND t.attname = s.attname AND NOT t.attisdropped
    JOIN pg_type y ON y.oid = t.atttypid
    CROSS JOIN LATERAL (
        SELECT t.atttypid AS oid, t.atttypmod AS typmod WHERE y.typtype <> 'd'
        UNION ALL
        (
            WITH RECURSIVE below (oid, typmod) AS (
                SELECT y.typbasetype, y.typtypmod WHERE y.typtype = 'd'
                UNION ALL
                SELECT d.typbasetype, greatest(below.typmod, d.typtypmod)
                FROM below JOIN pg_type d ON d.oid = below.oid AND d.typtype = 'd'
            )
            SELECT below.oid, below.typmod FROM below JOIN pg_type b ON b.oid = below.oid AND b.typtype <> 'd'
        )
    ) AS stored
    WHERE s.attrelid = staging.oid AND s.attnum > 0 AND (
        s.atttypid <> stored.oid
        OR (s.atttypmod <> stored.typmod AND NOT (s.atttypmod = -1 AND EXISTS (
            SELECT FROM pg_constraint c WHERE c.conrelid = s.attrelid AND s.attnum = ANY (c.conkey)
        )))
    )
)
LIMIT 1;
