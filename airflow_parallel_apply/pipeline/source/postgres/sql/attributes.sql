-- The columns that pgoutput sends of tables, in their order: what it says of each, whether they identify their rows, and
-- as in `columns.sql` how they are typed and compared. One row for each table, since thousands have many columns.
WITH RECURSIVE sent AS MATERIALIZED (
    SELECT
        a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation,
        coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false) AS is_key
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_catalog.pg_index i
        ON i.indrelid = c.oid AND i.indimmediate
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
        -- By a part of them rows are not told apart.
        AND NOT EXISTS (
            SELECT
            FROM pg_catalog.pg_attribute k
            WHERE k.attrelid = c.oid AND k.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                AND k.attgenerated <> '' AND NOT (k.attgenerated = 's' AND %(with_generated)s)
        )
    WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
        AND (a.attgenerated = '' OR a.attgenerated = 's' AND %(with_generated)s)
), base (typed, oid) AS (
    SELECT DISTINCT atttypid, atttypid FROM sent
    UNION ALL
    SELECT base.typed, t.typbasetype
    FROM base
    JOIN pg_catalog.pg_type t ON t.oid = base.oid AND t.typtype = 'd'
), typing AS MATERIALIZED (
    SELECT base.typed, pg_catalog.format_type(t.oid, NULL) AS name, t.typtype = 'e' AS is_enum
    FROM base
    JOIN pg_catalog.pg_type t ON t.oid = base.oid AND t.typtype <> 'd'
)
SELECT
    s.attrelid::bigint,
    json_agg(json_build_array(
        s.attnum, s.attname, s.atttypid::bigint, s.atttypmod, s.is_key,
        pg_catalog.format_type(s.atttypid, s.atttypmod), t.name, t.is_enum, coalesce(l.collisdeterministic, true)
    ) ORDER BY s.attnum)
FROM sent s
JOIN typing t ON t.typed = s.atttypid
LEFT JOIN pg_catalog.pg_collation l ON l.oid = s.attcollation
GROUP BY s.attrelid
