-- Whether a queue is strict or spread is decided by its first task, which another transaction may be inserting unseen. So
-- whoever brings strict tasks has the queue to itself until it commits, and whoever brings spread tasks shares it with
-- those who do the same. What is seen behind this statement is what will be there.
--
-- The locks are few, each for many queues, so that a modify of thousands of queues fits the server's table of locks; in
-- one order for everybody. A lock that is wanted both ways is taken exclusively.
SELECT
    CASE WHEN wanted.strict
        THEN pg_advisory_xact_lock(wanted.space, wanted.stripe)
        ELSE pg_advisory_xact_lock_shared(wanted.space, wanted.stripe)
    END
FROM (
    SELECT
        hashtext('parallel_apply queue kind ' || %(schema)s::text) AS space,
        hashtext(arrival.queue) & 255 AS stripe,
        bool_or(arrival.sequence IS NOT NULL) AS strict
    FROM unnest(%(queues)s::text[], %(sequences)s::bigint[]) AS arrival (queue, sequence)
    GROUP BY stripe
    ORDER BY stripe
    OFFSET 0
) AS wanted
