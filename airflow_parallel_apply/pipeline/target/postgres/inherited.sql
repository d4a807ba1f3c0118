-- name: owner
-- The uppermost table above a partition that has the constraint, or whose column takes no NULL.
SELECT format('%%s.%%s', n.nspname, c.relname)
FROM pg_partition_ancestors(to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text))) WITH ORDINALITY AS above (oid, ordinal)
JOIN pg_class c ON c.oid = above.oid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE CASE WHEN %(constraint)s::text IS NULL
    THEN EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = %(column)s::text AND attnotnull
    )
    ELSE EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND conname = %(constraint)s::text)
END
ORDER BY above.ordinal DESC
LIMIT 1;
