-- name: find
-- Those that turn a row away or change it before it is stored, or with also_after any.
-- A trigger's type has a bit for each row (1), before (2), insert (4), delete (8), update (16), truncate (32).
WITH held AS (
    SELECT %(oid)s::oid AS oid
    UNION
    SELECT relid FROM pg_class c CROSS JOIN LATERAL pg_partition_tree(c.oid) WHERE c.oid = %(oid)s::oid AND c.relkind = 'p'
), wanted (bits, letters) AS (
    SELECT coalesce(bit_or(bit), 0), array_agg(letter)
    FROM (VALUES ('insert', 4, '3'), ('delete', 8, '4'), ('update', 16, '2'), ('truncate', 32, NULL)) AS known (event, bit, letter)
    WHERE event = ANY (%(events)s::text[])
)
SELECT 'trigger' AS kind, g.tgname::text AS name, g.tgrelid::regclass::text AS place
FROM held
JOIN pg_trigger g ON g.tgrelid = held.oid
CROSS JOIN wanted
WHERE NOT g.tgisinternal AND NOT EXISTS (
      SELECT FROM pg_trigger p JOIN held h ON h.oid = p.tgrelid WHERE p.oid = g.tgparentid
  ) AND g.tgenabled::text = ANY (%(enabled)s::text[])
  AND (g.tgtype & 3 = 3 OR %(also_after)s) AND g.tgtype & bits <> 0
UNION ALL
SELECT 'rule', r.rulename::text, r.ev_class::regclass::text
FROM held
JOIN pg_rewrite r ON r.ev_class = held.oid
CROSS JOIN wanted
WHERE r.ev_enabled::text = ANY (%(enabled)s::text[]) AND r.ev_type::text = ANY (letters)
ORDER BY 1, 2, 3;

-- name: acting_references
-- The triggers of foreign keys that change what refers to these tables, if they fire in a replica's transactions.
WITH held AS (
    SELECT oid AS oid FROM unnest(%(oids)s::oid[]) AS oid
    UNION
    SELECT relid FROM pg_class c CROSS JOIN LATERAL pg_partition_tree(c.oid)
    WHERE c.oid = ANY (%(oids)s::oid[]) AND c.relkind = 'p'
)
SELECT format('%%I.%%I', n.nspname, c.relname) AS place, g.tgname::text AS trigger, k.conname::text AS name
FROM held
JOIN pg_trigger g ON g.tgrelid = held.oid AND g.tgisinternal AND g.tgenabled IN ('A', 'R')
JOIN pg_constraint k ON k.oid = g.tgconstraint AND k.contype = 'f' AND k.confrelid = g.tgrelid
JOIN pg_class c ON c.oid = g.tgrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')
ORDER BY 1, 2;
