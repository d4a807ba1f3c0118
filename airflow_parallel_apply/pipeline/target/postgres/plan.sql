-- name: planned_seqno
SELECT greatest(
    (SELECT coalesce(max(last_seqno), -1) FROM {schema}.epoch WHERE pipeline = %(pipeline)s),
    (SELECT coalesce(min(seqno), -1) FROM {schema}.position WHERE pipeline = %(pipeline)s)
);

-- name: next_number
SELECT coalesce(max(number) + 1, 0) FROM {schema}.epoch WHERE pipeline = %(pipeline)s;

-- name: last_at
SELECT coalesce(max(number), -1) FROM {schema}.epoch WHERE pipeline = %(pipeline)s AND last_seqno <= %(seqno)s;

-- name: add
INSERT INTO {schema}.epoch (pipeline, number, first_seqno, last_seqno, kind, reason, rows, bytes)
SELECT %(pipeline)s, number, first_seqno, last_seqno, kind, reason, rows, bytes
FROM jsonb_to_recordset(%(epochs)s) AS epoch (
    number bigint, first_seqno bigint, last_seqno bigint, kind text, reason text, rows bigint[], bytes bigint[]
);

-- name: read
SELECT number, first_seqno, last_seqno, kind, reason, rows, bytes
FROM {schema}.epoch
WHERE pipeline = %(pipeline)s AND number > %(after_number)s AND last_seqno > %(above_seqno)s
ORDER BY number
LIMIT %(limit)s;

-- name: channel_rows
SELECT coalesce(sum(e.rows[p.channel + 1]) FILTER (WHERE e.last_seqno <= p.seqno), 0),
       coalesce(sum(e.rows[p.channel + 1]) FILTER (WHERE e.last_seqno > p.seqno), 0)
FROM {schema}.position p
LEFT JOIN {schema}.epoch e ON e.pipeline = p.pipeline
WHERE p.pipeline = %(pipeline)s
GROUP BY p.channel
ORDER BY p.channel;

-- name: cut
-- An epoch that a channel has begun stays: its channels meet at its end. One in which all of them stand at the same seqno
-- (several critical transactions that went on one by one) may be planned anew from there.
DELETE FROM {schema}.epoch
WHERE pipeline = %(pipeline)s
  AND last_seqno > %(seqno)s
  AND EXISTS (
      SELECT FROM {schema}.epoch e
      WHERE e.pipeline = %(pipeline)s AND e.first_seqno <= %(seqno)s AND e.last_seqno > %(seqno)s
        AND (
            SELECT max(p.seqno) < e.first_seqno OR (max(p.seqno) < e.last_seqno AND min(p.seqno) = max(p.seqno))
            FROM {schema}.position p
            WHERE p.pipeline = %(pipeline)s
        )
  );

-- name: purge
DELETE FROM {schema}.epoch
WHERE pipeline = %(pipeline)s
  AND last_seqno <= least(%(through_seqno)s, (SELECT min(seqno) FROM {schema}.position WHERE pipeline = %(pipeline)s))
  AND number < (
      SELECT max(number) FROM {schema}.epoch WHERE pipeline = %(pipeline)s AND last_seqno <= %(through_seqno)s
  );
