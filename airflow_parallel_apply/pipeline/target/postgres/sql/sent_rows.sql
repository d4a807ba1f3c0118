-- name: there
SELECT current_setting('track_counts')::boolean, string_agg(oid::text, ' ') FROM pg_class WHERE relkind IN ('r', 'p');

-- name: written
-- The rows that this transaction has inserted, updated and deleted, of each table to which it has written.
SELECT oid, inserted, updated, deleted
FROM (
    SELECT oid::bigint, pg_stat_get_xact_tuples_inserted(oid) AS inserted,
           pg_stat_get_xact_tuples_updated(oid) AS updated, pg_stat_get_xact_tuples_deleted(oid) AS deleted
    FROM pg_class
    WHERE relkind = 'r' AND oid >= 16384 -- Not the catalog's own.
) counted
WHERE inserted + updated + deleted > 0;

-- name: above
-- These tables and those that they are partitions of.
SELECT DISTINCT above.oid::bigint
FROM unnest(%(oids)s::oid[]) AS part (oid)
CROSS JOIN LATERAL (SELECT part.oid UNION SELECT * FROM pg_partition_ancestors(part.oid)) above (oid);
