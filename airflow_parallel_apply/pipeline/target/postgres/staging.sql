-- name: foreign_staging
SELECT relname
FROM pg_class
WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s))
  AND relkind = 'r'
  AND starts_with(relname, %(prefix)s)
  AND (%(scopes)s::text[] IS NULL OR split_part(relname, '_', 3) = ANY (%(scopes)s::text[]))
  AND coalesce(substring(split_part(relname, '_', 3) FROM '^g(\d+)x')::bigint < %(from_group)s, true)
  AND split_part(relname, '_', 4) <> %(claim)s;

-- name: claim_staging
SELECT relname
FROM pg_class
WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s))
  AND relkind = 'r'
  AND starts_with(relname, %(prefix)s)
  AND split_part(relname, '_', 4) = %(claim)s;

-- name: gone
SELECT wanted
FROM unnest(%(names)s::text[]) AS wanted
WHERE to_regclass(format('%%I.%%I', %(schema)s::text, wanted)) IS NULL
LIMIT 1;
