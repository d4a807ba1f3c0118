-- How the columns of one relation are named and compared now. A domain is compared as its base type. Where the whole
-- old row is sent (REPLICA IDENTITY FULL) any unique index that admits no NULL and no duplicate, not even for a moment,
-- tells rows apart: the primary key's, else the narrowest.
WITH RECURSIVE wire AS (
    SELECT w.name, w.type, w.modifier, w.number
    FROM unnest(%(names)s::text[], %(types)s::oid[], %(modifiers)s::int[]) WITH ORDINALITY
        AS w (name, type, modifier, number)
), base (number, type) AS (
    SELECT number, type FROM wire
    UNION ALL
    SELECT base.number, t.typbasetype
    FROM base
    JOIN pg_catalog.pg_type t ON t.oid = base.type AND t.typtype = 'd'
), identity (columns, is_newer) AS (
    SELECT
        (i.indkey::int2[])[0:i.indnkeyatts - 1],
        pg_catalog.age(i.xmin) BETWEEN 0 AND pg_catalog.age(%(xid)s::text::xid) - 1 OR EXISTS (
            SELECT
            FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                AND pg_catalog.age(a.xmin) BETWEEN 0 AND pg_catalog.age(%(xid)s::text::xid) - 1
        )
    FROM pg_catalog.pg_index i
    WHERE i.indrelid = %(oid)s
        AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND NOT EXISTS (
            SELECT
            FROM unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) AS k (attnum)
            JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
            WHERE NOT a.attnotnull OR a.attgenerated <> '' OR a.attname <> ALL (%(names)s)
        )
    ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid
    LIMIT 1
)
SELECT
    CASE WHEN t.oid IS NOT NULL THEN format_type(w.type, w.modifier) END,
    format_type(t.oid, NULL),
    coalesce(t.typtype = 'e', false),
    coalesce(c.collisdeterministic, true),
    coalesce(a.attnum = ANY (i.columns), false),
    coalesce(i.is_newer, false),
    CASE WHEN a.atttypid = w.type THEN a.attnum END,
    CASE
        WHEN a.atttypid <> w.type THEN NULL
        WHEN a.atthasmissing THEN quote_literal((a.attmissingval::text::text[])[1])
        -- A default without a value for older rows: it was set later, or made a value for each.
        WHEN NOT a.atthasdef AND a.attidentity = '' THEN 'NULL'
    END,
    coalesce(pg_catalog.age(a.xmin) BETWEEN 0 AND pg_catalog.age(%(xid)s::text::xid) - 1, false)
FROM wire w
JOIN base b USING (number)
LEFT JOIN pg_catalog.pg_type t ON t.oid = b.type
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = %(oid)s AND a.attname = w.name AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
LEFT JOIN identity i ON true
WHERE t.typtype IS DISTINCT FROM 'd'
ORDER BY w.number
