-- name: tables
-- Tables of these names, and those that have rows of followed ones, or are to have some, whatever their names are by
-- now. A partition counts with its table. `pipeline`: another one that writes to the table, and this one does not.
WITH wanted AS (
    SELECT c.oid, NULL AS pipeline
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS wanted (nspname, relname)
    JOIN pg_namespace n ON n.nspname = wanted.nspname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.relname
    UNION ALL
    SELECT target, nullif(pipeline, %(pipeline)s) FROM {schema}.applied_table
    UNION ALL
    SELECT target, nullif(pipeline, %(pipeline)s) FROM {schema}.unbegun_table
), followed AS (
    SELECT oid, CASE WHEN count(*) = count(pipeline) THEN min(pipeline) END AS pipeline
    FROM wanted
    GROUP BY oid
)
SELECT c.oid::bigint, format('%%s.%%s', n.nspname, c.relname) AS name, followed.pipeline
FROM followed
JOIN pg_class c ON c.oid = followed.oid AND c.relkind IN ('r', 'p')
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE NOT c.relispartition OR NOT EXISTS (
    SELECT FROM pg_partition_ancestors(c.oid) AS above (oid) JOIN followed other ON other.oid = above.oid
    WHERE other.oid <> c.oid
);

-- name: written
-- Whoever gives a table another file locks it against everybody else.
WITH locked AS MATERIALIZED (
    SELECT relation FROM pg_locks
    WHERE pid = pg_backend_pid() AND locktype = 'relation' AND mode = 'AccessExclusiveLock'
)
SELECT c.oid::bigint, sum(pg_stat_get_xact_tuples_inserted(part.oid))::bigint,
       sum(pg_stat_get_xact_tuples_updated(part.oid))::bigint, sum(pg_stat_get_xact_tuples_deleted(part.oid))::bigint,
       json_object_agg(part.oid, pg_relation_filenode(part.oid)) AS files,
       (SELECT coalesce(json_agg(relation::text), '[]') FROM locked) AS locked
FROM pg_class c
CROSS JOIN LATERAL (
    SELECT c.oid WHERE c.relkind <> 'p'
    UNION ALL
    SELECT tree.relid FROM pg_partition_tree(c.oid) tree WHERE c.relkind = 'p'
) part
WHERE c.oid = ANY (%(oids)s::oid[])
GROUP BY c.oid;

-- name: deferred_triggers
WITH held AS (
    SELECT oid FROM unnest(%(oids)s::oid[]) AS oid
    UNION
    SELECT tree.relid FROM pg_class c CROSS JOIN LATERAL pg_partition_tree(c.oid) tree
    WHERE c.oid = ANY (%(oids)s::oid[]) AND c.relkind = 'p'
)
SELECT DISTINCT n.nspname::text, k.conname::text
FROM held
JOIN pg_trigger g ON g.tgrelid = held.oid AND NOT g.tgisinternal AND g.tgdeferrable AND g.tgenabled IN ('O', 'A')
JOIN pg_constraint k ON k.oid = g.tgconstraint
JOIN pg_namespace n ON n.oid = k.connamespace;
