-- name: here
-- The server and the database; an oid goes behind it.
SELECT system_identifier || '/' || d.oid || '/'
FROM pg_catalog.pg_control_system(), pg_catalog.pg_database d
WHERE d.datname = current_database()

-- name: forget_moved
-- The columns of tables that are not where theirs were noted: they may have other numbers there.
UPDATE {schema}.applied_table SET columns = '{{}}', place = NULL
WHERE pipeline = %(pipeline)s AND columns <> '{{}}' AND place IS DISTINCT FROM ({here}) || target::oid;

-- name: unknown
-- Tables that are not the noted ones, or whose columns are not noted, where they are.
SELECT w.ordinal - 1
FROM unnest(%(source_oids)s::bigint[], %(schemas)s::text[], %(tables)s::text[])
    WITH ORDINALITY AS w (source_oid, schema, name, ordinal)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
CROSS JOIN ({here}) AS here (text)
LEFT JOIN {schema}.applied_table known ON known.pipeline = %(pipeline)s AND known.source_oid = w.source_oid
WHERE known.place IS DISTINCT FROM here.text || c.oid;

-- name: note
-- A table that is there stays the one, whatever has its name by now, unless that has it as its partition. A column of it
-- stays the one, too. One that is computed here has no values to lose.
INSERT INTO {schema}.applied_table AS known (pipeline, source_oid, target, place, columns)
SELECT %(pipeline)s, w.source_oid, c.oid::regclass, here.text || c.oid, coalesce(named.columns, '{{}}')
FROM unnest(%(source_oids)s::bigint[], %(schemas)s::text[], %(tables)s::text[])
    WITH ORDINALITY AS w (source_oid, schema, name, ordinal)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
CROSS JOIN ({here}) AS here (text)
LEFT JOIN (
    SELECT k.ordinal, array_agg(k.number) AS numbers, array_agg(k.name) AS names
    FROM unnest(%(column_tables)s::bigint[], %(numbers)s::bigint[], %(columns)s::text[]) AS k (ordinal, number, name)
    GROUP BY k.ordinal
) given ON given.ordinal = w.ordinal
CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(k.number, a.attnum) AS columns
    FROM unnest(given.numbers, given.names) AS k (number, name)
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = k.name AND a.attgenerated = ''
) named
ON CONFLICT (pipeline, source_oid) DO UPDATE SET target = excluded.target, place = excluded.place, columns = CASE
    WHEN known.place = excluded.place AND NOT %(is_certain)s THEN excluded.columns || known.columns
    ELSE excluded.columns
END
WHERE %(is_certain)s
    OR known.target = excluded.target
    OR NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = known.target)
    OR excluded.target IN (SELECT relid FROM pg_catalog.pg_partition_ancestors(known.target));

-- name: note_unbegun
-- These tables, and no others, are the ones without rows yet.
WITH unbegun AS (
    SELECT c.oid
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
), begun AS (
    DELETE FROM {schema}.unbegun_table
    WHERE pipeline = %(pipeline)s AND NOT EXISTS (SELECT FROM unbegun WHERE oid = target)
)
INSERT INTO {schema}.unbegun_table (pipeline, target)
SELECT %(pipeline)s, oid FROM unbegun
ON CONFLICT DO NOTHING;

-- name: forget_others
-- The tables whose rows another one's have replaced, in what has these names.
DELETE FROM {schema}.applied_table known
USING unnest(%(source_oids)s::bigint[], %(schemas)s::text[], %(tables)s::text[]) AS w (source_oid, schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
WHERE known.pipeline = %(pipeline)s AND known.target = c.oid AND known.source_oid <> ALL (%(source_oids)s::bigint[]);

-- name: forget_dropped
-- The columns that this transaction has dropped.
UPDATE {schema}.applied_table AS known
SET columns = coalesce((
    SELECT jsonb_object_agg(k.key, k.value)
    FROM jsonb_each(known.columns) AS k
    WHERE NOT gone.attnums ? (k.value #>> '{{}}')
), '{{}}')
FROM (
    SELECT a.attrelid, jsonb_agg(a.attnum::text) AS attnums
    FROM {schema}.applied_table t
    JOIN pg_catalog.pg_attribute a ON a.attrelid = t.target
    WHERE t.pipeline = %(pipeline)s AND a.attisdropped AND {is_ours}
    GROUP BY a.attrelid
) gone
WHERE known.pipeline = %(pipeline)s AND gone.attrelid = known.target;

-- name: present
-- The noted columns of a table that is there by its name: the source's number, and the name by now; NULL: it is gone.
SELECT k.key::integer, CASE WHEN NOT a.attisdropped THEN a.attname::text END
FROM {schema}.applied_table known
JOIN pg_catalog.pg_class c ON c.oid = known.target
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL jsonb_each(known.columns) AS k
JOIN pg_catalog.pg_attribute a ON a.attrelid = known.target AND a.attnum = k.value::integer
WHERE known.pipeline = %(pipeline)s AND known.source_oid = %(source_oid)s
    AND (n.nspname, c.relname) = (%(schema)s, %(table)s);

-- name: names
-- The noted tables of these of the source's that are there, with the names that they, the tables above them and their
-- columns have, the columns' types and what computes them, and the source's number of a column, where it is noted; a
-- table's columns in their order.
SELECT
    known.source_oid, n.nspname::text, c.relname::text,
    (
        WITH RECURSIVE above (oid) AS (
            SELECT inhparent FROM pg_catalog.pg_inherits WHERE inhrelid = known.target
            UNION
            SELECT i.inhparent FROM above JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
        )
        SELECT coalesce(jsonb_agg(jsonb_build_array(an.nspname, a.relname)), '[]')
        FROM above
        JOIN pg_catalog.pg_class a ON a.oid = above.oid
        JOIN pg_catalog.pg_namespace an ON an.oid = a.relnamespace
    ),
    held.number, held.name, held.type_name, held.generated, held.expression
FROM {schema}.applied_table known
JOIN pg_catalog.pg_class c ON c.oid = known.target
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT
        k.key::integer AS number,
        a.attnum AS place,
        a.attname::text AS name,
        pg_catalog.format_type(a.atttypid, a.atttypmod) AS type_name,
        a.attgenerated::text AS generated,
        pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS expression
    FROM pg_catalog.pg_attribute a
    LEFT JOIN pg_catalog.pg_attrdef d ON a.attgenerated <> '' AND d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN jsonb_each(known.columns) AS k ON k.value::integer = a.attnum
    WHERE a.attrelid = known.target AND a.attnum > 0 AND NOT a.attisdropped
) AS held ON true
WHERE known.pipeline = %(pipeline)s AND known.source_oid = ANY (%(oids)s::bigint[])
ORDER BY known.source_oid, held.place;

-- name: differing
-- Of the noted tables that are there: those whose names are others than these, which no table has that they are
-- partitions of; and the columns that have other names than these, with NULL for one that is gone while another column
-- has its name.
WITH wanted AS MATERIALIZED (
    SELECT w.ordinal, w.schema, w.name, known.target, known.columns, n.nspname, c.relname
    FROM unnest(%(source_oids)s::bigint[], %(schemas)s::text[], %(tables)s::text[])
        WITH ORDINALITY AS w (source_oid, schema, name, ordinal)
    JOIN {schema}.applied_table known ON known.pipeline = %(pipeline)s AND known.source_oid = w.source_oid
    JOIN pg_catalog.pg_class c ON c.oid = known.target
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
)
SELECT ordinal - 1, nspname::text, relname::text, NULL, NULL
FROM wanted
WHERE (nspname, relname) <> (schema, name) AND NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_partition_ancestors(target) AS above
    JOIN pg_catalog.pg_class a ON a.oid = above.relid
    JOIN pg_catalog.pg_namespace an ON an.oid = a.relnamespace
    WHERE (an.nspname, a.relname) = (schema, name)
)
UNION ALL
SELECT ordinal - 1, nspname::text, relname::text, k.name, a.name
FROM unnest(%(column_tables)s::bigint[], %(numbers)s::bigint[], %(columns)s::text[]) AS k (ordinal, number, name)
JOIN wanted USING (ordinal)
CROSS JOIN LATERAL (
    SELECT CASE WHEN NOT attisdropped THEN attname::text END AS name
    FROM pg_catalog.pg_attribute
    WHERE attrelid = wanted.target AND attnum = (wanted.columns ->> k.number::text)::integer
    OFFSET 0
) a
WHERE (nspname, relname) = (schema, wanted.name) AND a.name IS DISTINCT FROM k.name AND (a.name IS NOT NULL OR EXISTS (
    SELECT
    FROM pg_catalog.pg_attribute
    WHERE attrelid = wanted.target AND attname = k.name AND attgenerated = ''
));

-- name: is_anothers
SELECT coalesce(bool_and(known.source_oid <> %(source_oid)s), false)
FROM {schema}.applied_table known
JOIN pg_catalog.pg_class c ON c.oid = known.target
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE known.pipeline = %(pipeline)s AND (n.nspname, c.relname) = (%(schema)s, %(table)s);

-- name: named
SELECT n.nspname::text, c.relname::text
FROM {schema}.applied_table known
JOIN pg_catalog.pg_class c ON c.oid = known.target
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE known.pipeline = %(pipeline)s AND known.source_oid = %(source_oid)s;
