-- Of some tables: who owns them, and by what the server identifies a row of them for an UPDATE or DELETE; of a
-- partitioned one every partition that holds rows. `key_index`: one that could serve as the replica identity.
SELECT
    t.oid::bigint AS root,
    n.nspname AS schema,
    c.relname AS table,
    c.relkind = 'p' AS is_partitioned,
    c.oid = t.oid AS is_root,
    pg_catalog.pg_get_userbyid(c.relowner)::text AS owner,
    (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.oid = c.relowner) AS is_owner_superuser,
    pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS can_use_schema,
    pg_catalog.row_security_active(c.oid) AS is_row_security_active,
    c.relreplident AS replica_identity,
    CASE c.relreplident
        WHEN 'd' THEN EXISTS (
            SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate
        )
        WHEN 'i' THEN EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
        ELSE c.relreplident = 'f'
    END AS has_identity,
    EXISTS (
        SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate
    ) AS has_primary_key,
    (
        SELECT k.relname
        FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_class k ON k.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
            AND i.indpred IS NULL AND i.indexprs IS NULL
            AND NOT EXISTS (
                SELECT
                FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS number
                JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = number
                WHERE NOT a.attnotnull
            )
        ORDER BY k.relname
        LIMIT 1
    ) AS key_index
FROM unnest(%(oids)s::oid[]) WITH ORDINALITY AS t (oid, ordinal)
CROSS JOIN LATERAL (
    SELECT t.oid AS relid
    UNION
    SELECT p.relid FROM pg_catalog.pg_partition_tree(t.oid) p WHERE p.isleaf
) AS member
JOIN pg_catalog.pg_class c ON c.oid = member.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY t.ordinal, c.oid <> t.oid, n.nspname, c.relname
