-- The end of the WAL. At the start of a page the server points behind the page's header, which nothing flushes: of 40 bytes
-- on the first page of a segment, of 24 on any other. A record that reaches into a page ends behind more than that.
SELECT lsn - CASE
    WHEN lsn % pg_catalog.pg_size_bytes(current_setting('wal_segment_size')) = 40 THEN 40
    WHEN lsn % current_setting('wal_block_size')::bigint = 24 THEN 24
    ELSE 0
END
FROM (SELECT (pg_catalog.pg_current_wal_insert_lsn() - '0/0')::bigint) AS inserted (lsn)
