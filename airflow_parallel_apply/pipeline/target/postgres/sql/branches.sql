-- name: prepared
SELECT gid FROM pg_prepared_xacts
WHERE database = current_database() AND starts_with(gid, %(prefix)s)
ORDER BY gid;

-- name: series
SELECT after_seqno, last_seqno, names, origin_offset, origin_time FROM {schema}.series WHERE pipeline = %(pipeline)s;

-- name: series_locked
SELECT after_seqno, last_seqno, names, origin_offset, origin_time FROM {schema}.series
WHERE pipeline = %(pipeline)s FOR UPDATE;

-- name: record
INSERT INTO {schema}.series (pipeline, after_seqno, last_seqno, names, origin_offset, origin_time)
VALUES (%(pipeline)s, %(after_seqno)s, %(last_seqno)s, %(names)s, %(offset)s, %(commit_time)s);

-- name: not_prepared
SELECT name
FROM unnest(%(names)s::text[]) AS name
WHERE name NOT IN (SELECT gid FROM pg_prepared_xacts WHERE database = current_database())
LIMIT 1;

-- name: mark
INSERT INTO {schema}.branch (name, pipeline) VALUES (%(name)s, %(pipeline)s);

-- name: not_committed
SELECT name
FROM unnest(%(names)s::text[]) AS name
WHERE name NOT IN (SELECT branch.name FROM {schema}.branch WHERE pipeline = %(pipeline)s)
LIMIT 1;

-- name: move
UPDATE {schema}.position SET seqno = %(last_seqno)s
WHERE pipeline = %(pipeline)s AND seqno = %(after_seqno)s;

-- name: undecided
-- A mark is seen with its branch's rows. Both the record and the mark are looked at in one snapshot.
SELECT b.name FROM {schema}.branch b
WHERE b.pipeline = %(pipeline)s
  AND NOT EXISTS (SELECT FROM {schema}.series s WHERE s.pipeline = b.pipeline AND b.name = ANY (s.names))
LIMIT 1;

-- name: forget
-- Not the mark of one that nothing decided.
WITH marks AS (
    DELETE FROM {schema}.branch b USING {schema}.series s
    WHERE b.pipeline = %(pipeline)s AND s.pipeline = b.pipeline AND b.name = ANY (s.names)
)
DELETE FROM {schema}.series WHERE pipeline = %(pipeline)s;

-- name: forget_all
WITH marks AS (DELETE FROM {schema}.branch WHERE pipeline = %(pipeline)s)
DELETE FROM {schema}.series WHERE pipeline = %(pipeline)s;

-- name: claim
UPDATE {schema}.position
SET generation = %(generation)s, claim = %(token)s
WHERE pipeline = %(pipeline)s AND (%(channel)s::integer IS NULL OR channel = %(channel)s);

-- name: is_claimed
SELECT coalesce(bool_and(seqno = %(after_seqno)s AND generation = %(generation)s AND claim = %(token)s), false)
FROM {schema}.position
WHERE pipeline = %(pipeline)s AND (%(channel)s::integer IS NULL OR channel = %(channel)s);

-- name: room
SELECT current_setting('max_prepared_transactions')::integer,
       (SELECT count(*) FROM pg_prepared_xacts WHERE NOT starts_with(gid, %(prefix)s));

-- name: patience
-- Whoever waits here for a row of a prepared branch waits for himself.
SET LOCAL lock_timeout = '250ms';

-- name: direct_patience
-- Whoever waits longer leaves it to the lane, which waits without a slot of Spark's.
SET LOCAL lock_timeout = '10s';

-- name: exists
SELECT to_regclass(format('%%I.series', %(schema)s::text)) IS NOT NULL;
