-- name: note
-- A table that is there stays the one, whatever has its name by now, unless that has it as its partition.
INSERT INTO {schema}.applied_table AS known (pipeline, source_oid, target)
SELECT %(pipeline)s, w.source_oid, c.oid::regclass
FROM unnest(%(source_oids)s::bigint[], %(schemas)s::text[], %(tables)s::text[]) AS w (source_oid, schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
LEFT JOIN {schema}.applied_table before ON before.pipeline = %(pipeline)s AND before.source_oid = w.source_oid
WHERE before.target IS DISTINCT FROM c.oid
ON CONFLICT (pipeline, source_oid) DO UPDATE SET target = excluded.target
WHERE %(is_certain)s
    OR NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = known.target)
    OR excluded.target IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(known.target));

-- name: named_otherwise
-- Those of the noted tables that are there, and whose names are others than these, which no table has that they are
-- partitions of.
SELECT w.source_oid, n.nspname::text, c.relname::text
FROM unnest(%(source_oids)s::bigint[], %(schemas)s::text[], %(tables)s::text[]) AS w (source_oid, schema, name)
JOIN {schema}.applied_table known ON known.pipeline = %(pipeline)s AND known.source_oid = w.source_oid
JOIN pg_catalog.pg_class c ON c.oid = known.target
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) <> (w.schema, w.name) AND NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_partition_ancestors(known.target) AS above
    JOIN pg_catalog.pg_class a ON a.oid = above.relid
    JOIN pg_catalog.pg_namespace an ON an.oid = a.relnamespace
    WHERE (an.nspname, a.relname) = (w.schema, w.name)
);

-- name: named
SELECT n.nspname::text, c.relname::text
FROM {schema}.applied_table known
JOIN pg_catalog.pg_class c ON c.oid = known.target
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE known.pipeline = %(pipeline)s AND known.source_oid = %(source_oid)s;
