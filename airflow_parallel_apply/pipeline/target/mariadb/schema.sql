CREATE TABLE IF NOT EXISTS parallel_apply.pipeline (
    pipeline varchar(64) NOT NULL PRIMARY KEY,
    log_id varchar(255) NOT NULL,
    routing_digest varchar(255) NOT NULL DEFAULT '',
    channels int NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0,
    ledger varchar(512) NOT NULL DEFAULT ''
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS parallel_apply.position (
    pipeline varchar(64) NOT NULL,
    channel int NOT NULL,
    seqno bigint NOT NULL,
    generation bigint NOT NULL,
    claim varchar(255) NULL,
    PRIMARY KEY (pipeline, channel)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS parallel_apply.holder (
    name varchar(64) NOT NULL PRIMARY KEY,
    pipeline varchar(64) NOT NULL,
    channel int NULL,
    group_number bigint NULL,
    claim varchar(255) NOT NULL,
    KEY (pipeline)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
