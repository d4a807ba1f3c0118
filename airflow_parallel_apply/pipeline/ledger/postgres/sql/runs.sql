-- name: freeze
-- `greatest` and `least` pass over NULL: without an interval, or without others, the offset stays as it is asked.
INSERT INTO {schema}.run AS r (pipeline, run_id, until_offset, from_time, until_time)
SELECT %(pipeline)s, %(run_id)s,
       greatest(least(%(until_offset)s, min(until_offset) FILTER (WHERE until_time >= %(until_time)s::timestamptz)),
                max(until_offset) FILTER (WHERE until_time <= %(until_time)s::timestamptz)),
       %(from_time)s::timestamptz, %(until_time)s::timestamptz
FROM {schema}.run
WHERE pipeline = %(pipeline)s AND run_id <> %(run_id)s
ON CONFLICT (pipeline, run_id) DO UPDATE
SET until_offset = excluded.until_offset, until_seqno = NULL, opened = now(),
    from_time = excluded.from_time, until_time = excluded.until_time
WHERE (r.from_time, r.until_time) IS DISTINCT FROM (excluded.from_time, excluded.until_time);

-- name: settle
UPDATE {schema}.run SET until_seqno = coalesce(until_seqno, %(until_seqno)s)
WHERE pipeline = %(pipeline)s AND run_id = %(run_id)s;

-- name: read
SELECT run_id, until_offset, until_seqno, from_time, until_time
FROM {schema}.run
WHERE pipeline = %(pipeline)s AND run_id = %(run_id)s;

-- name: cuts
SELECT DISTINCT until_seqno FROM {schema}.run
WHERE pipeline = %(pipeline)s AND until_seqno > %(above_seqno)s
ORDER BY until_seqno;

-- name: covered_time
SELECT max(until_time) FROM {schema}.run
WHERE pipeline = %(pipeline)s AND until_seqno <= %(seqno)s;
