-- Which tables were made as partitions, empty, and never attached since. Attaching writes every column's entry anew,
-- while those of the system's columns stay as they were made. So a column that was written by the command that made
-- the system's (the same transaction and the same command in it) was never attached. The command that an entry tells is
-- not the one that wrote it where an update was tried, be it rolled back: such an entry has an xmax, until it is frozen.
-- Attaching also writes the entry in pg_inherits, by the same command as the columns'; where a partition is made, that is
-- a later command of it.
SELECT t.oid::bigint
FROM unnest(%(oids)s::oid[]) AS t (oid)
WHERE EXISTS (
    SELECT
    FROM pg_catalog.pg_attribute made
    JOIN pg_catalog.pg_attribute a ON a.attrelid = made.attrelid AND a.xmin = made.xmin AND a.cmin = made.cmin
        AND a.xmax = 0
    WHERE made.attrelid = t.oid AND made.attname = 'tableoid' AND made.attnum < 0
        AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.attislocal
)
AND NOT EXISTS (
    SELECT
    FROM pg_catalog.pg_inherits i
    JOIN pg_catalog.pg_attribute a ON a.attrelid = i.inhrelid AND a.xmin = i.xmin AND a.cmin = i.cmin
    WHERE i.inhrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.attislocal
)
