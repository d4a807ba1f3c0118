-- name: planned_seqno
SELECT coalesce(max(last_seqno), -1) FROM {schema}.epoch WHERE pipeline = %(pipeline)s;

-- name: next_number
SELECT coalesce(max(number) + 1, 0) FROM {schema}.epoch WHERE pipeline = %(pipeline)s;

-- name: last_at
SELECT coalesce(max(number), -1) FROM {schema}.epoch WHERE pipeline = %(pipeline)s AND last_seqno <= %(seqno)s;

-- name: add
INSERT INTO {schema}.epoch (pipeline, number, first_seqno, last_seqno, kind, reason, rows, bytes, end_offset, inserts, end_time)
SELECT %(pipeline)s, number, first_seqno, last_seqno, kind, reason, rows, bytes, end_offset, inserts, end_time
FROM jsonb_to_recordset(%(epochs)s) AS epoch (
    number bigint, first_seqno bigint, last_seqno bigint, kind text, reason text, rows bigint[], bytes bigint[],
    end_offset bigint, inserts bigint[], end_time timestamptz
);

-- name: read
SELECT number, first_seqno, last_seqno, kind, reason, rows, bytes, end_offset, inserts, end_time
FROM {schema}.epoch
WHERE pipeline = %(pipeline)s AND number > %(after_number)s AND last_seqno > %(above_seqno)s
ORDER BY number
LIMIT %(limit)s;

-- name: channel_rows
SELECT coalesce(sum(e.rows[p.place]) FILTER (WHERE e.last_seqno <= p.seqno), 0),
       coalesce(sum(e.rows[p.place]) FILTER (WHERE e.last_seqno > p.seqno), 0)
FROM unnest(%(seqnos)s::bigint[]) WITH ORDINALITY AS p (seqno, place)
LEFT JOIN {schema}.epoch e ON e.pipeline = %(pipeline)s
GROUP BY p.place
ORDER BY p.place;

-- name: is_planned
SELECT FROM {schema}.epoch
WHERE pipeline = %(pipeline)s AND number = %(number)s
  AND (last_seqno = %(last_seqno)s OR (kind = 'serial' AND %(last_seqno)s BETWEEN first_seqno AND last_seqno));

-- name: cut_at_positions
-- Inside of a serial epoch all channels may stand, which went on one transaction at a time.
DELETE FROM {schema}.epoch
WHERE pipeline = %(pipeline)s
  AND last_seqno >= (
      SELECT min(e.first_seqno)
      FROM {schema}.epoch e
      JOIN unnest(%(positions)s::bigint[]) AS at (seqno) ON e.first_seqno <= at.seqno AND e.last_seqno > at.seqno
      WHERE e.pipeline = %(pipeline)s AND e.last_seqno > %(lowest)s AND e.kind = 'parallel'
  );

-- name: cut
-- An epoch that a channel has begun stays: its channels meet at its end. One in which all of them stand at the same seqno
-- (several critical transactions that went on one by one) may be planned anew from there.
DELETE FROM {schema}.epoch
WHERE pipeline = %(pipeline)s
  AND last_seqno > %(seqno)s
  AND EXISTS (
      SELECT FROM {schema}.epoch e
      WHERE e.pipeline = %(pipeline)s AND e.first_seqno <= %(seqno)s AND e.last_seqno > %(seqno)s
        AND (%(highest)s < e.first_seqno OR (%(highest)s < e.last_seqno AND %(lowest)s = %(highest)s))
  );

-- name: purge
DELETE FROM {schema}.epoch
WHERE pipeline = %(pipeline)s
  AND last_seqno <= %(through_seqno)s
  AND number < (
      SELECT max(number) FROM {schema}.epoch WHERE pipeline = %(pipeline)s AND last_seqno <= %(through_seqno)s
  );

-- name: drop_above
DELETE FROM {schema}.epoch WHERE pipeline = %(pipeline)s AND last_seqno > %(seqno)s;
