CREATE TABLE {schema}.task (
    id uuid PRIMARY KEY,
    queue text COLLATE "C" NOT NULL CHECK (queue <> ''),
    sequence bigint,
    version bigint NOT NULL,
    at timestamptz NOT NULL,
    claimant text,
    claims integer NOT NULL,
    attempt integer NOT NULL,
    err text NOT NULL,
    -- json, not jsonb: a value comes back as it was given, numbers and key order included.
    value json NOT NULL,
    created timestamptz NOT NULL,
    modified timestamptz NOT NULL
) WITH (
    fillfactor = 70,
    -- Rows live for seconds: without these a busy queue's heads hide behind dead ones.
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0.05
);

CREATE UNIQUE INDEX task_strict ON {schema}.task (queue, sequence) WHERE sequence IS NOT NULL;
CREATE INDEX task_spread ON {schema}.task (queue, at, id) WHERE sequence IS NULL;

-- A function, since each of its statements sees what was committed before that statement: the second look at a
-- strict queue's head needs the lock from the first one, and a newer view than it had.
CREATE FUNCTION {schema}.claim(queues text[], new_claimant text, lease interval) RETURNS SETOF {schema}.task
LANGUAGE plpgsql AS $claim$
DECLARE
    moment timestamptz := clock_timestamp();
    wanted text;
    chosen uuid;
BEGIN
    FOR wanted IN SELECT name FROM unnest(queues) AS name ORDER BY random() LOOP
        SELECT task.id INTO chosen FROM {schema}.task
        WHERE task.queue = wanted AND task.sequence IS NOT NULL ORDER BY task.sequence LIMIT 1;
        IF FOUND THEN
            -- The head or nothing: when it is locked, gone, claimed or delayed, what is behind it stays.
            PERFORM FROM {schema}.task
            WHERE task.id = chosen AND task.queue = wanted AND task.at <= moment FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            -- It may have ceased to be the head between the two statements above; now it is locked.
            PERFORM FROM {schema}.task AS head JOIN {schema}.task AS before
                ON before.queue = head.queue AND before.sequence < head.sequence
            WHERE head.id = chosen;
            CONTINUE WHEN FOUND;
        ELSE
            SELECT task.id INTO chosen FROM {schema}.task
            WHERE task.queue = wanted AND task.sequence IS NULL AND task.at <= moment
            ORDER BY task.at, task.id LIMIT 1 FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
        END IF;
        RETURN QUERY UPDATE {schema}.task AS task
        SET version = task.version + 1, claims = task.claims + 1, claimant = new_claimant,
            at = moment + lease, modified = moment
        WHERE task.id = chosen
        RETURNING task.*;
        RETURN;
    END LOOP;
END
$claim$;
