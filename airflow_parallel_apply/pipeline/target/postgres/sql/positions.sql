-- name: read
-- A channel whose position somebody has removed has NULL in place of it.
SELECT routed.channel, position.seqno, position.generation, position.claim
FROM {schema}.pipeline
CROSS JOIN generate_series(0, pipeline.channels - 1) AS routed (channel)
LEFT JOIN {schema}.position ON position.pipeline = pipeline.pipeline AND position.channel = routed.channel
WHERE pipeline.pipeline = %(pipeline)s
ORDER BY routed.channel;

-- name: last_stop
SELECT generation, clean_stop_seqno FROM {schema}.pipeline WHERE pipeline = %(pipeline)s;

-- name: lock
SELECT channel, seqno, generation, claim FROM {schema}.position WHERE pipeline = %(pipeline)s
ORDER BY channel FOR UPDATE;

-- name: there
SELECT n.nspname::text, c.relname::text
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS named (schema, name)
JOIN pg_namespace n ON n.nspname = named.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = named.name AND c.relkind IN ('r', 'p')
ORDER BY 1, 2;

-- name: generation
SELECT generation, routing_digest FROM {schema}.pipeline WHERE pipeline = %(pipeline)s FOR SHARE;

-- name: take
UPDATE {schema}.position
SET generation = %(generation)s, claim = %(token)s
WHERE pipeline = %(pipeline)s
  AND (%(channel)s::integer IS NULL OR channel = %(channel)s)
  AND generation <= %(generation)s
RETURNING channel, seqno, generation, claim;

-- name: move
UPDATE {schema}.position
SET seqno = %(last_seqno)s
WHERE pipeline = %(pipeline)s AND channel = %(channel)s
  AND seqno = %(after_seqno)s AND generation = %(generation)s AND claim = %(token)s;

-- name: move_all
UPDATE {schema}.position
SET seqno = %(last_seqno)s
WHERE pipeline = %(pipeline)s
  AND seqno = (%(after_seqnos)s::bigint[])[channel + 1] AND generation = %(generation)s AND claim = %(token)s;

-- name: is_planned
SELECT FROM {schema}.epoch
WHERE pipeline = %(pipeline)s AND number = %(number)s
  AND (last_seqno = %(last_seqno)s OR (kind = 'serial' AND %(last_seqno)s BETWEEN first_seqno AND last_seqno));

-- name: wait_for_disk
SET LOCAL synchronous_commit = on;

-- name: write
-- A transaction that wrote nothing would not wait.
SELECT pg_logical_emit_message(true, 'parallel_apply.settle', '');

-- name: own
UPDATE {schema}.position
SET generation = %(generation)s, claim = NULL
WHERE pipeline = %(pipeline)s AND generation < %(generation)s;

-- name: own_pipeline
-- Where the ledger is in this database it has done so already.
UPDATE {schema}.pipeline SET generation = %(generation)s WHERE pipeline = %(pipeline)s AND generation < %(generation)s;

-- name: routed
SELECT found.routing_digest, found.generation, coalesce(to_jsonb(found) ->> 'ledger', '')
FROM {schema}.pipeline found
WHERE pipeline = %(pipeline)s;

-- name: log_id
SELECT log_id FROM {schema}.pipeline WHERE pipeline = %(pipeline)s;

-- name: register
INSERT INTO {schema}.pipeline (pipeline, log_id, ledger) VALUES (%(pipeline)s, %(log_id)s, %(ledger)s)
ON CONFLICT (pipeline) DO NOTHING;

-- name: forget
DELETE FROM {schema}.position WHERE pipeline = %(pipeline)s;

-- name: make
INSERT INTO {schema}.position (pipeline, channel, seqno, generation)
SELECT %(pipeline)s, channel, %(seqno)s, %(generation)s
FROM generate_series(0, %(channels)s - 1) AS channel;

-- name: set_routing
UPDATE {schema}.pipeline
SET routing_digest = %(routing_digest)s, channels = %(channels)s, generation = greatest(generation, %(generation)s)
WHERE pipeline = %(pipeline)s;
