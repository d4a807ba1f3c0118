-- name: read
-- By its name in JSON: whoever looks before a run has upgraded an older schema finds no such column.
SELECT pipeline, log_id, routing_digest, channels, generation, owner, lease_until, clean_stop_seqno,
       owner IS NOT NULL AND lease_until > now() AS is_owned,
       CASE WHEN owner IS NOT NULL AND lease_until <= now() THEN now() - lease_until END AS lapsed_for,
       coalesce(to_jsonb(found) ->> 'queue', '') AS queue,
       coalesce(to_jsonb(found) ->> 'ledger', '') AS ledger,
       coalesce(to_jsonb(found) ->> 'target', '') AS target
FROM {schema}.pipeline found
WHERE pipeline = %(pipeline)s;

-- name: lock
SELECT pipeline, log_id, routing_digest, channels, generation, owner, lease_until, clean_stop_seqno,
       owner IS NOT NULL AND lease_until > now() AS is_owned, ledger, target
FROM {schema}.pipeline
WHERE pipeline = %(pipeline)s
FOR UPDATE;

-- name: register
INSERT INTO {schema}.pipeline (pipeline, log_id, target) VALUES (%(pipeline)s, %(log_id)s, %(target)s)
ON CONFLICT (pipeline) DO NOTHING;

-- name: acquire
UPDATE {schema}.pipeline
SET generation = %(generation)s, owner = %(owner)s, lease_until = now() + %(lease)s, clean_stop_seqno = NULL,
    queue = %(queue)s
WHERE pipeline = %(pipeline)s;

-- name: renew
UPDATE {schema}.pipeline
SET lease_until = now() + %(lease)s
WHERE pipeline = %(pipeline)s AND generation = %(generation)s AND owner IS NOT NULL;

-- name: release
UPDATE {schema}.pipeline
SET owner = NULL, lease_until = NULL, clean_stop_seqno = %(clean_stop_seqno)s
WHERE pipeline = %(pipeline)s AND generation = %(generation)s;

-- name: routing
SELECT routing, channels FROM {schema}.pipeline WHERE pipeline = %(pipeline)s;

-- name: set_routing
UPDATE {schema}.pipeline
SET routing_digest = %(routing_digest)s, routing = %(routing)s, channels = %(channels)s, generation = %(generation)s
WHERE pipeline = %(pipeline)s;
