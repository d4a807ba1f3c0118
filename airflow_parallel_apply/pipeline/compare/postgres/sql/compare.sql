-- name: tables
SELECT n.nspname AS schema, c.relname AS table,
       coalesce(array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated = ''), '{}') AS columns,
       coalesce(array_agg(a.attname::text ORDER BY a.attnum) FILTER (WHERE a.attgenerated <> ''), '{}') AS generated,
       array_agg(a.attname::text ORDER BY a.attnum) FILTER (
           WHERE a.attnum = ANY (key.columns) AND a.attgenerated = ''
       ) AS key
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN LATERAL (
    SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS columns
    FROM pg_index i
    WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident)
    ORDER BY i.indisreplident DESC
    LIMIT 1
) AS key ON true
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'parallel_apply')
GROUP BY n.nspname, c.relname
ORDER BY n.nspname, c.relname;

-- name: columns
SELECT a.attname::text
FROM pg_attribute a
WHERE a.attrelid = to_regclass(format('%I.%I', $1::text, $2::text)) AND a.attnum > 0 AND NOT a.attisdropped;

-- name: types
-- A domain's are those of the type below it.
SELECT a.attname::text, (
    WITH RECURSIVE base AS (
        SELECT a.atttypid AS oid, a.atttypmod AS modifier
        UNION ALL
        SELECT t.typbasetype, t.typtypmod FROM base JOIN pg_type t ON t.oid = base.oid WHERE t.typtype = 'd'
    )
    SELECT format_type(base.oid, base.modifier) FROM base JOIN pg_type t ON t.oid = base.oid WHERE t.typtype <> 'd'
)
FROM pg_attribute a
WHERE a.attrelid = to_regclass(format('%I.%I', $1::text, $2::text)) AND a.attnum > 0 AND NOT a.attisdropped;

-- name: own_rows
-- Rows of tables that inherit from it are theirs; a partitioned table has none but its partitions'.
SELECT relkind <> 'p' FROM pg_class WHERE oid = to_regclass(format('%I.%I', $1::text, $2::text));

-- name: checksum
SELECT count(*), coalesce(sum(hash), 0)
FROM (SELECT ('x' || left(md5(convert_to(ROW({columns})::text, 'UTF8')), 16))::bit(64)::bigint AS hash FROM {rows}) AS rows;

-- name: buckets
SELECT bucket, count(*), sum(hash)
FROM (
    SELECT ('x' || left(md5(convert_to(ROW({columns})::text, 'UTF8')), 16))::bit(64)::bigint AS hash,
           ('x' || left(md5(convert_to(ROW({key})::text, 'UTF8')), 8))::bit(32)::bigint % $1::bigint AS bucket
    FROM {rows}
) AS rows
GROUP BY bucket;

-- name: rows
SELECT key, hash, count(*)
FROM (
    SELECT ROW({key})::text AS key, md5(convert_to(ROW({columns})::text, 'UTF8')) AS hash,
           ('x' || left(md5(convert_to(ROW({key})::text, 'UTF8')), 8))::bit(32)::bigint % $1::bigint AS bucket
    FROM {rows}
) AS rows
WHERE bucket = ANY ($2::bigint[])
GROUP BY key, hash;

-- name: holders
-- A prepared transaction has no session, and is known by the lock on its own id.
SELECT coalesce('the prepared transaction ' || p.gid, format('session %s of role %s', l.pid, b.usename))
FROM pg_locks l
LEFT JOIN pg_stat_activity b ON b.pid = l.pid
LEFT JOIN pg_locks own ON l.pid IS NULL AND own.pid IS NULL AND own.virtualtransaction = l.virtualtransaction
    AND own.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts p ON p.transaction = own.transactionid
WHERE l.granted AND l.mode = 'AccessExclusiveLock' AND l.relation = to_regclass(format('%I.%I', $1::text, $2::text))
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
ORDER BY 1;
