-- name: lock
SELECT pg_advisory_xact_lock(7020137112410041973);

-- name: exists
SELECT to_regnamespace(quote_ident(%(schema)s)) IS NOT NULL,
       to_regclass(format('%%I.schema_version', %(schema)s::text)) IS NOT NULL,
       has_database_privilege(current_database(), 'CREATE'), current_database(), current_user;

-- name: identity
SELECT (SELECT system_identifier::text FROM pg_control_system()), current_database()::text;

-- name: create_schema
CREATE SCHEMA {schema};

-- name: create_version
CREATE TABLE {schema}.schema_version (
    version integer PRIMARY KEY,
    applied timestamptz NOT NULL DEFAULT now()
);

-- name: version
SELECT coalesce(max(version), 0) FROM {schema}.schema_version;

-- name: add_version
INSERT INTO {schema}.schema_version (version) VALUES (%(version)s);

-- name: upgrade_1
CREATE TABLE {schema}.pipeline (
    pipeline text PRIMARY KEY,
    log_id text NOT NULL,
    routing_digest text NOT NULL DEFAULT '',
    channels integer NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0,
    owner text,
    lease_until timestamptz,
    clean_stop_seqno bigint
);

CREATE TABLE {schema}.position (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    channel integer NOT NULL,
    seqno bigint NOT NULL,
    generation bigint NOT NULL,
    claim text,
    PRIMARY KEY (pipeline, channel)
) WITH (fillfactor = 20);

CREATE TABLE {schema}.epoch (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    number bigint NOT NULL,
    first_seqno bigint NOT NULL,
    last_seqno bigint NOT NULL,
    kind text NOT NULL,
    reason text NOT NULL,
    rows bigint[] NOT NULL,
    bytes bigint[] NOT NULL,
    PRIMARY KEY (pipeline, number),
    UNIQUE (pipeline, last_seqno)
);

CREATE TABLE {schema}.run (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    run_id text NOT NULL,
    until_lsn bigint NOT NULL,
    until_seqno bigint,
    opened timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, run_id)
);

-- name: upgrade_2
ALTER TABLE {schema}.run ADD COLUMN from_time timestamptz, ADD COLUMN until_time timestamptz;

-- name: upgrade_3
-- NULL in rows of earlier releases: by key, nothing colocated.
ALTER TABLE {schema}.pipeline ADD COLUMN routing jsonb;

-- name: upgrade_4
CREATE TABLE {schema}.copy (
    pipeline text PRIMARY KEY,
    copy_id text NOT NULL,
    log_id text NOT NULL DEFAULT '',
    began timestamptz NOT NULL DEFAULT now(),
    loaded timestamptz,
    finished timestamptz,
    registered timestamptz,
    failure text,
    made jsonb NOT NULL DEFAULT '[]'
);

CREATE TABLE {schema}.copy_part (
    copy_id text NOT NULL,
    part integer NOT NULL,
    pipeline text NOT NULL REFERENCES {schema}.copy ON DELETE CASCADE,
    target_oid oid NOT NULL,
    task jsonb NOT NULL,
    weight bigint NOT NULL,
    rows bigint,
    bytes bigint,
    PRIMARY KEY (copy_id, part)
);

-- name: upgrade_5
CREATE TABLE {schema}.conflict (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    reason text NOT NULL,
    -- Empty where the server did not say.
    table_name text NOT NULL,
    count bigint NOT NULL,
    last_seqno bigint NOT NULL,
    last_time timestamptz NOT NULL,
    PRIMARY KEY (pipeline, reason, table_name)
);

-- name: upgrade_6
ALTER TABLE {schema}.pipeline ADD COLUMN queue text NOT NULL DEFAULT '';

-- name: upgrade_7
-- Tables that were copied anew, each with its last copy.
CREATE TABLE {schema}.recopy (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    recopy_id text NOT NULL,
    lsn bigint NOT NULL,
    rows bigint NOT NULL,
    finished timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, schema_name, table_name)
);

-- name: upgrade_8
-- Where two databases share a pipeline, each names the other: `ledger` in the row beside the positions, `target` in the
-- row of the ledger. Empty: both are here.
ALTER TABLE {schema}.pipeline ADD COLUMN ledger text NOT NULL DEFAULT '', ADD COLUMN target text NOT NULL DEFAULT '';

-- name: upgrade_9
ALTER TABLE {schema}.run RENAME COLUMN until_lsn TO until_offset;
ALTER TABLE {schema}.recopy RENAME COLUMN lsn TO copied_offset;

-- name: upgrade_10
-- NULL in plans of earlier releases.
ALTER TABLE {schema}.epoch ADD COLUMN end_offset bigint;

-- For readers of the target. They act as their owner, so that a reader needs nothing but USAGE of this schema.
CREATE FUNCTION {schema}.consistent_snapshot(pipeline_name text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    lowest bigint;
    highest bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'each statement of this transaction may see another state of the source'
        USING ERRCODE = 'invalid_transaction_state', HINT = 'Begin it with BEGIN ISOLATION LEVEL REPEATABLE READ.';
    END IF;
    SELECT min(seqno), max(seqno) INTO lowest, highest FROM {schema}.position WHERE pipeline = pipeline_name;
    IF lowest IS NULL THEN
        RAISE EXCEPTION 'no pipeline % applies to this database', pipeline_name
        USING ERRCODE = 'undefined_object', HINT = 'Its first run registers it.';
    END IF;
    IF lowest <> highest THEN
        RAISE EXCEPTION 'the channels of pipeline % are at different transactions, % to %', pipeline_name, lowest, highest
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Run the pipeline with consistency=epoch, or read when its run has ended.';
    END IF;
    RETURN lowest;
END
$function$;

CREATE FUNCTION {schema}.wait_for(
    pipeline_name text, source_offset text, patience interval DEFAULT '1 minute'
) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    wanted bigint := CASE
        WHEN source_offset ~ '/' THEN (source_offset::pg_lsn - '0/0'::pg_lsn)::bigint
        ELSE source_offset::bigint
    END;
    deadline timestamptz := clock_timestamp() + patience;
    reached bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this transaction does not see what is committed while it waits'
        USING ERRCODE = 'invalid_transaction_state', HINT = 'Wait before it, in a transaction of READ COMMITTED.';
    END IF;
    IF EXISTS (SELECT FROM {schema}.pipeline WHERE pipeline = pipeline_name AND ledger <> '') THEN
        RAISE EXCEPTION 'the ledger of pipeline % is in another database, and only there offsets are known', pipeline_name
        USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    LOOP
        SELECT min(seqno) INTO reached FROM {schema}.position WHERE pipeline = pipeline_name;
        IF reached IS NULL THEN
            RAISE EXCEPTION 'no pipeline % applies to this database', pipeline_name
            USING ERRCODE = 'undefined_object', HINT = 'Its first run registers it.';
        END IF;
        -- Where a run ends by time, transactions below its offset may be another run's.
        IF EXISTS (
            SELECT FROM {schema}.epoch
            WHERE pipeline = pipeline_name AND end_offset >= wanted AND last_seqno <= reached
        ) OR EXISTS (
            SELECT FROM {schema}.run
            WHERE pipeline = pipeline_name AND until_time IS NULL AND until_offset >= wanted AND until_seqno <= reached
        ) THEN
            RETURN true;
        END IF;
        IF clock_timestamp() >= deadline THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(0.05);
    END LOOP;
END
$function$;

-- name: upgrade_11
-- Groups whose branches are committed one by one: each is decided by its record here, and each branch leaves a mark.
CREATE TABLE {schema}.series (
    pipeline text PRIMARY KEY REFERENCES {schema}.pipeline ON DELETE CASCADE,
    after_seqno bigint NOT NULL,
    last_seqno bigint NOT NULL,
    names text[] NOT NULL,
    -- Of the commits, see `origin.py`; NULL: none.
    origin_offset bigint,
    origin_time timestamptz
);

CREATE TABLE {schema}.branch (
    name text PRIMARY KEY,
    pipeline text NOT NULL
);

-- As before, but it knows series.
CREATE OR REPLACE FUNCTION {schema}.consistent_snapshot(pipeline_name text) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    lowest bigint;
    highest bigint;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'each statement of this transaction may see another state of the source'
        USING ERRCODE = 'invalid_transaction_state', HINT = 'Begin it with BEGIN ISOLATION LEVEL REPEATABLE READ.';
    END IF;
    IF EXISTS (SELECT FROM {schema}.series WHERE pipeline = pipeline_name) THEN
        RAISE EXCEPTION 'this snapshot lies between the commits of one transaction of the source'
        USING ERRCODE = 'serialization_failure', HINT = 'Roll back and begin again: the next snapshot is likely not to.';
    END IF;
    SELECT min(seqno), max(seqno) INTO lowest, highest FROM {schema}.position WHERE pipeline = pipeline_name;
    IF lowest IS NULL THEN
        RAISE EXCEPTION 'no pipeline % applies to this database', pipeline_name
        USING ERRCODE = 'undefined_object', HINT = 'Its first run registers it.';
    END IF;
    IF lowest <> highest THEN
        RAISE EXCEPTION 'the channels of pipeline % are at different transactions, % to %', pipeline_name, lowest, highest
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Run the pipeline with consistency=epoch, or read when its run has ended.';
    END IF;
    RETURN lowest;
END
$function$;

-- name: upgrade_12
-- Tables that DDL messages renamed here, with the names that the log has for them until it tells the new ones.
CREATE TABLE {schema}.told_rename (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    oid oid NOT NULL,
    schema_name text NOT NULL,
    table_name text NOT NULL,
    PRIMARY KEY (pipeline, oid)
);

-- name: upgrade_13
-- Work that was done in vain; merge points are conflicts.
CREATE TABLE {schema}.rework (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    kind text NOT NULL,
    reason text NOT NULL,
    -- Empty where it is not one table's, or the server did not say.
    table_name text NOT NULL,
    count bigint NOT NULL,
    last_seqno bigint NOT NULL,
    last_time timestamptz NOT NULL,
    PRIMARY KEY (pipeline, kind, reason, table_name)
);

-- name: upgrade_14
-- Merge points are work in vain as other work is.
INSERT INTO {schema}.rework (pipeline, kind, reason, table_name, count, last_seqno, last_time)
SELECT pipeline, 'merge point', reason, table_name, count, last_seqno, last_time FROM {schema}.conflict;

DROP TABLE {schema}.conflict;

-- By channel, how many of the rows are insertions; and when the epoch's last transaction was committed. NULL where it was
-- planned before.
ALTER TABLE {schema}.epoch ADD COLUMN inserts bigint[], ADD COLUMN end_time timestamptz;

-- name: upgrade_15
-- The table here that has the rows of each of the source's, whatever it is called. A dump writes it by its name, since
-- it has another oid in another database.
CREATE TABLE {schema}.applied_table (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    source_oid bigint NOT NULL,
    target regclass NOT NULL,
    PRIMARY KEY (pipeline, source_oid)
);

-- name: upgrade_16
-- By the numbers of the source's columns, those that the table has for them. They are its own as long as it is in `place`
-- (server, database, oid): a dump counts them anew. NULL where they are not known.
ALTER TABLE {schema}.applied_table ADD COLUMN place text, ADD COLUMN columns jsonb NOT NULL DEFAULT '{{}}';

-- name: upgrade_17
-- A copy notes the tables that it fills, before there is a pipeline.
ALTER TABLE {schema}.applied_table DROP CONSTRAINT applied_table_pipeline_fkey;

-- name: upgrade_18
-- Tables here that a pipeline follows, and to which it has applied nothing yet, as the last run found them. They are in
-- no definition of the log, so whoever applies knows them from here alone.
CREATE TABLE {schema}.unbegun_table (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    target regclass NOT NULL,
    PRIMARY KEY (pipeline, target)
);

-- name: upgrade_19
-- Columns of tables here to which DDL messages have given other types, by their numbers here, with the types that they had:
-- what they held was cast. Until the table's newer definition is followed, or a row of the older one comes behind it.
CREATE TABLE {schema}.told_type (
    pipeline text NOT NULL REFERENCES {schema}.pipeline ON DELETE CASCADE,
    oid oid NOT NULL,
    number integer NOT NULL,
    type_name text NOT NULL,
    PRIMARY KEY (pipeline, oid, number, type_name)
);
