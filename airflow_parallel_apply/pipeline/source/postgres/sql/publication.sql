-- What a publication sends of its tables, and who touched it last: the comment is written in the transactions in which
-- we alter it.
SELECT
    (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
    p.xmin::text::bigint,
    (SELECT d.xmin::text::bigint FROM pg_catalog.pg_description d
        WHERE d.objoid = p.oid AND d.classoid = 'pg_catalog.pg_publication'::regclass AND d.objsubid = 0),
    array_remove(ARRAY[
        CASE WHEN NOT p.pubinsert THEN 'insert' END,
        CASE WHEN NOT p.pubupdate THEN 'update' END,
        CASE WHEN NOT p.pubdelete THEN 'delete' END,
        CASE WHEN NOT p.pubtruncate THEN 'truncate' END
    ], NULL),
    p.pubviaroot,
    pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint
FROM pg_catalog.pg_publication p
WHERE p.pubname = %(publication)s
