CREATE TABLE IF NOT EXISTS {schema}.queue_version (
    version integer PRIMARY KEY,
    applied timestamptz NOT NULL DEFAULT now()
)
