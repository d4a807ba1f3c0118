-- name: note
-- In the transaction itself, so that what is undone of it is forgotten.
SELECT set_config('parallel_apply.held', (
    SELECT coalesce(nullif(current_setting('parallel_apply.held', true), '')::jsonb, '{{}}')
        || coalesce(jsonb_object_agg(c.oid::text, jsonb_build_array(n.nspname, c.relname)), '{{}}')
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (nspname, relname)
    JOIN pg_namespace n ON n.nspname = w.nspname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname AND c.relkind IN ('r', 'p')
)::text, true);

-- name: renamed
SELECT held.value ->> 0, held.value ->> 1
FROM jsonb_each(nullif(current_setting('parallel_apply.held', true), '')::jsonb) AS held
WHERE NOT EXISTS (
    SELECT
    FROM pg_namespace n
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = held.value ->> 1
    WHERE n.nspname = held.value ->> 0 AND c.oid = held.key::oid
)
ORDER BY 1, 2
LIMIT 1;
