-- name: exists
SELECT to_regclass(format('%%I.rework', %(schema)s::text)) IS NOT NULL;

-- name: add
-- Whoever finds the channels at the merge point's seqno counts it: the one before may have died just after the commit.
INSERT INTO {schema}.rework AS known (pipeline, kind, reason, table_name, count, last_seqno, last_time)
VALUES (%(pipeline)s, %(kind)s, %(reason)s, %(table)s, 1, %(seqno)s, now())
ON CONFLICT (pipeline, kind, reason, table_name)
DO UPDATE SET count = known.count + 1, last_seqno = greatest(known.last_seqno, excluded.last_seqno),
              last_time = excluded.last_time
WHERE known.kind <> 'merge point' OR known.last_seqno < excluded.last_seqno;

-- name: read
SELECT kind, reason, nullif(table_name, '') AS "table", count, last_seqno, last_time
FROM {schema}.rework
WHERE pipeline = %(pipeline)s
ORDER BY kind, count DESC, reason, table_name;
