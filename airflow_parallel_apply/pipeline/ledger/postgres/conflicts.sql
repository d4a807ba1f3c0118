-- name: exists
SELECT to_regclass(format('%%I.conflict', %(schema)s::text)) IS NOT NULL;

-- name: add
-- A merge point is known by the seqno at which the channels met: each lies above the one before.
INSERT INTO {schema}.conflict AS known (pipeline, reason, table_name, count, last_seqno, last_time)
VALUES (%(pipeline)s, %(reason)s, %(table)s, 1, %(seqno)s, now())
ON CONFLICT (pipeline, reason, table_name)
DO UPDATE SET count = known.count + 1, last_seqno = excluded.last_seqno, last_time = excluded.last_time
WHERE known.last_seqno < excluded.last_seqno;

-- name: read
SELECT reason, nullif(table_name, '') AS "table", count, last_seqno, last_time
FROM {schema}.conflict
WHERE pipeline = %(pipeline)s
ORDER BY count DESC, reason, table_name;
