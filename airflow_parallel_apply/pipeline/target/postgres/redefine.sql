-- name: columns
-- In the words of a session without a search path, as the source's types are told.
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attgenerated::text, a.attnotnull,
    CASE WHEN a.attgenerated <> '' THEN pg_get_expr(d.adbin, d.adrelid) END
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_attrdef d ON a.attgenerated <> '' AND d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))
    AND a.attnum > 0 AND NOT a.attisdropped;
