-- name: foreign_staging
SELECT relname
FROM pg_class
WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s))
  AND relkind = 'r'
  AND starts_with(relname, %(prefix)s)
  AND (%(channels)s::text[] IS NULL OR split_part(relname, '_', 3) = ANY (%(channels)s::text[]))
  AND split_part(relname, '_', 4) <> %(claim)s;

-- name: claim_staging
SELECT relname
FROM pg_class
WHERE relnamespace = to_regnamespace(quote_ident(%(schema)s))
  AND relkind = 'r'
  AND starts_with(relname, %(prefix)s)
  AND (%(channels)s::text[] IS NULL OR split_part(relname, '_', 3) = ANY (%(channels)s::text[]))
  AND split_part(relname, '_', 4) = %(claim)s;

-- name: gone
SELECT wanted
FROM unnest(%(names)s::text[]) AS wanted
WHERE to_regclass(format('%%I.%%I', %(schema)s::text, wanted)) IS NULL
LIMIT 1;
