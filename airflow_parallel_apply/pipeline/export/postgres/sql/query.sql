-- name: types
SELECT format_type(asked.type, asked.modifier), format_type(base.oid, NULL), base.typtype = 'e'
FROM unnest($1::oid[], $2::int[]) WITH ORDINALITY AS asked (type, modifier, place)
JOIN pg_type AS base ON base.oid = asked.type
ORDER BY asked.place
