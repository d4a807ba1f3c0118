-- What tables are now: whether they have partitions, whether all parts that hold rows have REPLICA IDENTITY FULL, which
-- none inherits, their columns with the versions of their entries, the unique index that tells rows apart where whole old ones are sent, and the parts that
-- were rewritten or truncated since they were made, by their files. That index admits no NULL and no duplicate, not even
-- for a moment: the primary key's, else the narrowest. A NOT NULL that is not validated admits NULLs.
SELECT
    c.oid::bigint,
    c.relkind = 'p',
    coalesce(part.are_full, true),
    c.relnatts::int,
    (
        SELECT coalesce(json_agg(json_build_array(
            a.attnum, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated,
            CASE WHEN a.attgenerated <> '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) END,
            a.xmin::text::bigint
        ) ORDER BY a.attnum), '[]')
        FROM pg_catalog.pg_attribute a
        LEFT JOIN pg_catalog.pg_attrdef d
            ON a.attgenerated <> '' AND d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    ),
    key.index,
    key.columns,
    part.rewritten,
    (SELECT n.nspname::text FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace),
    c.relname::text
FROM unnest(%(oids)s::oid[]) WITH ORDINALITY AS t (oid, ordinal)
JOIN pg_catalog.pg_class c ON c.oid = t.oid
LEFT JOIN LATERAL (
    SELECT
        bool_and(leaf.relreplident = 'f') AS are_full,
        json_agg(json_build_array(leaf.oid::bigint, leaf.relfilenode::bigint) ORDER BY leaf.oid)
            FILTER (WHERE leaf.relfilenode <> leaf.oid) AS rewritten
    FROM (
        SELECT c.oid AS relid
        UNION ALL
        SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p WHERE c.relkind = 'p' AND p.relid <> c.oid
    ) AS member
    -- By its index, however many members the planner expects of a tree: not all of the catalog for each table.
    CROSS JOIN LATERAL (
        SELECT l.oid, l.relreplident, l.relfilenode
        FROM pg_catalog.pg_class l
        WHERE l.oid = member.relid AND l.relkind = 'r'
        OFFSET 0
    ) AS leaf
) AS part ON true
LEFT JOIN LATERAL (
    SELECT i.indexrelid::bigint AS index, (i.indkey::int2[])[0:i.indnkeyatts - 1]::int[] AS columns
    FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid
        AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
        AND NOT EXISTS (
            SELECT
            FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                AND (NOT a.attnotnull OR a.attgenerated <> '')
        )
        AND NOT EXISTS (
            SELECT
            FROM pg_catalog.pg_constraint n
            WHERE n.conrelid = i.indrelid AND n.contype = 'n' AND NOT n.convalidated
                AND n.conkey && (i.indkey::int2[])[0:i.indnkeyatts - 1]
        )
    ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid
    LIMIT 1
) AS key ON true
ORDER BY t.ordinal
