-- A claim of several tasks, and one at random among the oldest of a spread queue. A function still, since each of its
-- statements sees what was committed before that statement: the second look at a strict queue's head needs the lock from
-- the first one, and a newer view than it had.
DROP FUNCTION {schema}.claim(text[], text, interval);

CREATE FUNCTION {schema}.claim(queues text[], new_claimant text, lease interval, wanted integer)
RETURNS SETOF {schema}.task
LANGUAGE plpgsql AS $claim$
DECLARE
    -- Tasks of a spread queue, from the oldest on, among which one is chosen; the memory backend has the same number.
    oldest CONSTANT integer := 32;
    moment timestamptz := clock_timestamp();
    name text;
    seen uuid[];
    chosen uuid[];
    start integer;
BEGIN
    FOR name IN SELECT asked FROM unnest(queues) AS asked GROUP BY asked ORDER BY random() LOOP
        EXIT WHEN wanted = 0;
        chosen := ARRAY(
            SELECT task.id FROM {schema}.task
            WHERE task.queue = name AND task.sequence IS NOT NULL ORDER BY task.sequence LIMIT 1
        );
        IF cardinality(chosen) = 1 THEN
            -- The head or nothing: when it is locked, gone, claimed or delayed, what is behind it stays.
            PERFORM FROM {schema}.task
            WHERE task.id = chosen[1] AND task.queue = name AND task.at <= moment FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            -- It may have ceased to be the head between the two statements above; now it is locked.
            PERFORM FROM {schema}.task AS head JOIN {schema}.task AS before
                ON before.queue = head.queue AND before.sequence < head.sequence
            WHERE head.id = chosen[1];
            CONTINUE WHEN FOUND;
        ELSE
            IF wanted < oldest THEN
                -- Without locks: what is passed over stays free for others.
                seen := ARRAY(
                    SELECT task.id FROM {schema}.task
                    WHERE task.queue = name AND task.sequence IS NULL AND task.at <= moment
                    ORDER BY task.at, task.id LIMIT oldest
                );
                start := floor(greatest(cardinality(seen) - wanted + 1, 1) * random() ^ 2);
                chosen := ARRAY(
                    SELECT task.id FROM {schema}.task
                    WHERE task.id = ANY(seen[start + 1 : start + wanted])
                        AND task.queue = name AND task.sequence IS NULL AND task.at <= moment
                    FOR UPDATE SKIP LOCKED
                );
            END IF;
            IF cardinality(chosen) < wanted THEN
                -- Others were quicker there, or many are wanted: the oldest that nobody has locked.
                chosen := chosen || ARRAY(
                    SELECT task.id FROM {schema}.task
                    WHERE task.queue = name AND task.sequence IS NULL AND task.at <= moment AND task.id <> ALL(chosen)
                    ORDER BY task.at, task.id LIMIT wanted - cardinality(chosen) FOR UPDATE SKIP LOCKED
                );
            END IF;
        END IF;
        RETURN QUERY UPDATE {schema}.task AS task
        SET version = task.version + 1, claims = task.claims + 1, claimant = new_claimant,
            at = moment + lease, modified = moment
        WHERE task.id = ANY(chosen)
        RETURNING task.*;
        wanted := wanted - cardinality(chosen);
    END LOOP;
END
$claim$;

-- Deletes tasks that the caller holds, in one statement and so one transaction: all of them, or an error of its own and
-- none. Whoever gets that error asks again the long way, which says what is wrong with which.
CREATE FUNCTION {schema}.finish(ids uuid[], versions bigint[], holder text, channel text) RETURNS void
LANGUAGE plpgsql AS $finish$
DECLARE
    emptied text[];
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.task USING unnest(ids, versions) AS held (id, version)
        WHERE task.id = held.id AND task.version = held.version AND task.claimant = holder
        RETURNING task.queue
    )
    SELECT array_agg(gone.queue) INTO emptied FROM gone;
    IF cardinality(emptied) IS DISTINCT FROM cardinality(ids) THEN
        RAISE EXCEPTION 'not all of these tasks are held' USING ERRCODE = 'PAQ01';
    END IF;
    PERFORM pg_notify(channel, told.queue) FROM (SELECT DISTINCT unnest(emptied)) AS told (queue);
END
$finish$;
