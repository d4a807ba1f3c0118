SELECT {schema}.finish(%(ids)s::uuid[], %(versions)s::bigint[], %(claimant)s::text, %(channel)s::text)
