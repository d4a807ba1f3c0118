-- What rows that are older than a column hold in it, as each part of the table that holds rows has it: a value that all
-- of them share, as a literal, or none. Partitions number their columns by themselves.
SELECT
    a.attnum::int,
    part.oid::bigint,
    part.relfilenode::bigint,
    CASE WHEN own.atthasmissing THEN pg_catalog.quote_literal(pg_catalog.array_to_string(own.attmissingval, '')) END
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
CROSS JOIN LATERAL (
    SELECT c.oid AS relid
    UNION
    SELECT p.relid FROM pg_catalog.pg_partition_tree(c.oid) p
) AS member
JOIN pg_catalog.pg_class part ON part.oid = member.relid AND part.relkind = 'r'
JOIN pg_catalog.pg_attribute own ON own.attrelid = part.oid AND own.attname = a.attname AND NOT own.attisdropped
WHERE a.attrelid = %(oid)s AND a.attnum = ANY (%(numbers)s::int[]) AND NOT a.attisdropped AND own.atttypid = a.atttypid
