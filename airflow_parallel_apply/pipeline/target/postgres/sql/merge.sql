-- name: settings
SET LOCAL enable_hashjoin = off;
SET LOCAL enable_mergejoin = off;
SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off;
SET LOCAL enable_memoize = off;
SET LOCAL enable_material = off;
SET LOCAL max_parallel_workers_per_gather = 0;

-- name: default_settings
SET LOCAL enable_hashjoin TO DEFAULT;
SET LOCAL enable_mergejoin TO DEFAULT;
SET LOCAL enable_seqscan TO DEFAULT;
SET LOCAL enable_bitmapscan TO DEFAULT;
SET LOCAL enable_memoize TO DEFAULT;
SET LOCAL enable_material TO DEFAULT;
SET LOCAL max_parallel_workers_per_gather TO DEFAULT;

-- name: be_replica
SELECT set_config('session_replication_role', 'replica', true)
WHERE current_setting('session_replication_role') <> 'replica';
