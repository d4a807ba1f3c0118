-- Every table that can be followed. A partitioned table stands for its partitions.
SELECT
    c.oid,
    n.nspname,
    c.relname,
    c.relreplident,
    EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_primary_key,
    c.relkind = 'p' AS is_partitioned,
    pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_owner,
    pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AS can_select,
    EXISTS (
        SELECT
        FROM pg_catalog.pg_publication_rel r
        JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
        WHERE r.prrelid = c.oid AND p.pubname = %(publication)s
    ) AS is_published,
    -- From version 18 on the server refuses updates of whole old rows with columns that the publication leaves out.
    coalesce(
        CASE WHEN c.relreplident = 'f' AND current_setting('server_version_num')::int >= 180000 THEN (
            SELECT max(a.attgenerated)
            FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ) END,
        ''
    )::text AS generated
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p')
    AND c.relpersistence = 'p'
    AND NOT c.relispartition
    AND n.nspname NOT IN ('information_schema', 'parallel_apply')
    AND n.nspname !~ '^pg_'
ORDER BY n.nspname, c.relname
