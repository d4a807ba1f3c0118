-- name: columns
-- In the words of a session without a search path, as the source's types are told.
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated::text, a.attnotnull
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))
    AND a.attnum > 0 AND NOT a.attisdropped;
