-- The columns that pgoutput sends of tables, and whether they identify their rows.
SELECT
    a.attrelid::bigint,
    a.attname,
    a.atttypid::bigint,
    a.atttypmod,
    coalesce(a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_catalog.pg_index i
    ON i.indrelid = c.oid AND i.indimmediate
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    AND (a.attgenerated = '' OR a.attgenerated = 's' AND %(with_generated)s)
ORDER BY a.attrelid, a.attnum
