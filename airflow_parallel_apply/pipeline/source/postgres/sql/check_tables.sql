-- Of some tables: who owns them, and by what the server identifies a row of them for an UPDATE or DELETE; of a
-- partitioned one every partition that holds rows. `computed_key`: a column of that which is computed. `key_index`: one
-- that could serve as the replica identity, looked for as the primary key is, where there is none.
-- `computed_otherwise`: a partition's columns with expressions of their own, each with that of the whole table where the
-- server can give it to the partition (from version 17 on).
SELECT
    t.oid::bigint AS root,
    n.nspname AS schema,
    c.relname AS table,
    c.relkind = 'p' AS is_partitioned,
    c.oid = t.oid AS is_root,
    c.relpersistence = 'u' AND c.relkind = 'r' AS is_unlogged,
    c.relkind = 'f' AS is_foreign,
    pg_catalog.pg_get_userbyid(c.relowner)::text AS owner,
    pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_owner,
    pg_catalog.has_table_privilege(c.oid, 'SELECT') AS can_read,
    (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = c.relowner) AS is_owner_superuser,
    pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS can_use_schema,
    pg_catalog.row_security_active(c.oid) AS is_row_security_active,
    c.relreplident AS replica_identity,
    identity.is_there AS has_identity,
    (
        SELECT min(a.attname)
        FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attgenerated <> ''
            AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        WHERE i.indrelid = c.oid
            AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
    ) AS computed_key,
    NOT identity.is_there AND EXISTS (
        SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate
    ) AS has_primary_key,
    CASE WHEN NOT identity.is_there THEN (
        SELECT (SELECT k.relname FROM pg_catalog.pg_class k WHERE k.oid = i.indexrelid) AS name
        FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
            AND i.indpred IS NULL AND i.indexprs IS NULL
            AND NOT EXISTS (
                SELECT
                FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND (NOT a.attnotnull OR a.attgenerated <> '')
                    AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
            )
        ORDER BY name
        LIMIT 1
    ) END AS key_index,
    (
        SELECT json_agg(json_build_array(a.attname, CASE
            WHEN current_setting('server_version_num')::int >= 170000 THEN whole.text
        END) ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_attribute above ON above.attrelid = t.oid AND above.attname = a.attname
        CROSS JOIN LATERAL (
            SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS text FROM pg_catalog.pg_attrdef d
            WHERE d.adrelid = t.oid AND d.adnum = above.attnum
        ) AS whole
        WHERE c.oid <> t.oid AND a.attrelid = c.oid AND a.attgenerated <> ''
            AND (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d
                WHERE d.adrelid = c.oid AND d.adnum = a.attnum)
            <> whole.text
    ) AS computed_otherwise
FROM unnest(%(oids)s::oid[]) WITH ORDINALITY AS t (oid, ordinal)
CROSS JOIN LATERAL (
    SELECT t.oid AS relid
    UNION ALL
    SELECT p.relid FROM pg_catalog.pg_partition_tree(t.oid) p WHERE p.isleaf AND p.relid <> t.oid
) AS member
-- By its index, as in `shape.sql`.
CROSS JOIN LATERAL (SELECT m.* FROM pg_catalog.pg_class m WHERE m.oid = member.relid OFFSET 0) AS c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT CASE c.relreplident
            WHEN 'd' THEN EXISTS (
                SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate
            )
            WHEN 'i' THEN EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
            ELSE c.relreplident = 'f'
        END AS is_there
) AS identity
ORDER BY t.ordinal, c.oid <> t.oid, n.nspname, c.relname
