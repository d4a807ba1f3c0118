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
