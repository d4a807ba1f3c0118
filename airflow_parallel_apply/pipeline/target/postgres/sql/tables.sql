-- name: describe
-- What belongs to a table is looked for by its index, which OFFSET 0 makes sure of: with statistics of a catalog that
-- has just grown, or for one table, the planner reads all of a catalog instead, for each column even. What few tables
-- have (triggers, types that somebody made) has statements of its own: in a new session the planner would pay for it.
-- A table without columns has one row, whose column is NULL.
SELECT w.ordinal - 1 AS index, a.attname AS column,
       c.oid, c.relkind::text AS kind, c.relkind = 'p' OR c.relhasrules OR c.relhastriggers AS may_fire,
       a.atttypid::bigint AS type_oid, format_type(a.atttypid, a.atttypmod) AS type_sql,
       format_type(a.atttypid, -1) AS plain_type_sql,
       a.attgenerated <> '' AS generated, a.attidentity = 'a' AS identity_always,
       a.attnotnull AND a.attidentity = '' AS not_null, a.atthasdef AS has_default,
       coalesce(NOT l.collisdeterministic, false) AS fuzzy, a.attgenerated = 'v' AS virtual
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) WITH ORDINALITY AS w(nspname, relname, ordinal)
JOIN pg_namespace n ON n.nspname = w.nspname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname
LEFT JOIN LATERAL (
    SELECT attname, attnum, atttypid, atttypmod, attgenerated, attidentity, attnotnull, atthasdef, attcollation
    FROM pg_attribute
    WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
    OFFSET 0
) a ON true
LEFT JOIN pg_collation l ON l.oid = a.attcollation
ORDER BY w.ordinal, a.attnum;

-- name: there
-- Whether each is partitioned, and its name; in one order, whoever asks.
SELECT DISTINCT c.relkind = 'p', n.nspname::text, c.relname::text
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS w(nspname, relname)
JOIN pg_namespace n ON n.nspname = w.nspname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.relname AND c.relkind IN ('r', 'p')
ORDER BY 2, 3;

-- name: firing
WITH held (root, oid) AS (
    SELECT oid, oid FROM unnest(%(oids)s::oid[]) AS oid
    UNION
    SELECT c.oid, p.relid
    FROM pg_class c
    CROSS JOIN LATERAL pg_partition_tree(c.oid) p
    WHERE c.oid = ANY (%(oids)s::oid[]) AND c.relkind = 'p'
), watched AS MATERIALIZED (
    SELECT root, bool_or(enabled IN ('O', 'A')) AS by_others, bool_or(enabled IN ('A', 'R')) AS by_replicas
    FROM (
        SELECT held.root, g.enabled
        FROM held
        CROSS JOIN LATERAL (
            SELECT tgenabled AS enabled FROM pg_trigger WHERE tgrelid = held.oid AND NOT tgisinternal OFFSET 0
        ) g
        UNION ALL
        SELECT r.ev_class, r.ev_enabled FROM pg_rewrite r WHERE r.ev_class = ANY (%(oids)s::oid[])
    ) guards
    GROUP BY root
)
SELECT c.oid,
       c.relhasrules OR EXISTS (
           SELECT
           FROM held
           JOIN pg_trigger g ON g.tgrelid = held.oid AND g.tgenabled IN ('O', 'A')
                AND g.tgfoid <> 'unique_key_recheck'::regproc
           WHERE held.root = c.oid
           OFFSET 0
       ) AS fires,
       coalesce(watched.by_others, false) AS has_guards, coalesce(watched.by_replicas, false) AS fires_as_replica,
       EXISTS (
           SELECT
           FROM held
           JOIN pg_trigger g ON g.tgrelid = held.oid AND g.tgisinternal AND g.tgenabled IN ('A', 'R')
           JOIN pg_constraint k ON k.oid = g.tgconstraint AND k.contype = 'f' AND k.confrelid = g.tgrelid
           WHERE held.root = c.oid AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
           OFFSET 0
       ) AS references_act_as_replica
FROM pg_class c
LEFT JOIN watched ON watched.root = c.oid
WHERE c.oid = ANY (%(oids)s::oid[]);

-- name: types
-- A domain's base, and the schema that format_type leaves out where the session's search path has it, as the source
-- names types.
WITH RECURSIVE below (domain, oid, typmod) AS (
    SELECT t.oid, t.typbasetype, t.typtypmod
    FROM pg_type t
    WHERE t.oid = ANY (%(oids)s::oid[]) AND t.typtype = 'd'
    UNION ALL
    SELECT b.domain, t.typbasetype, greatest(b.typmod, t.typtypmod)
    FROM below b
    CROSS JOIN LATERAL (
        SELECT typbasetype, typtypmod FROM pg_type WHERE oid = b.oid AND typtype = 'd' OFFSET 0
    ) t
), base AS MATERIALIZED (
    SELECT b.domain, b.oid, b.typmod
    FROM below b
    CROSS JOIN LATERAL (SELECT FROM pg_type WHERE oid = b.oid AND typtype <> 'd' OFFSET 0) t
), named AS MATERIALIZED (
    SELECT u.oid, element.compound, element.prefix
    FROM (SELECT unnest(%(oids)s::oid[]) UNION SELECT base.oid FROM base) AS u (oid)
    CROSS JOIN LATERAL (
        -- A composite type, a range, or an array of these or of domains, that is not built in.
        SELECT e.oid >= 16384 AND e.typtype IN ('c', 'd', 'r', 'm') AS compound,
               CASE WHEN n.nspname <> 'pg_catalog' AND pg_type_is_visible(e.oid)
                   THEN quote_ident(n.nspname) || '.' ELSE '' END AS prefix
        FROM pg_type plain
        JOIN pg_type e ON e.oid = CASE WHEN plain.typcategory = 'A' AND plain.typelem <> 0 THEN plain.typelem ELSE plain.oid END
        JOIN pg_namespace n ON n.oid = e.typnamespace
        WHERE plain.oid = u.oid
        OFFSET 0
    ) element
)
SELECT declared.oid, declared.prefix AS declared_prefix, plain.prefix, plain.compound, base.oid::bigint AS base_oid,
       format_type(base.oid, base.typmod) AS base_sql, format_type(base.oid, -1) AS plain_base_sql
FROM named declared
LEFT JOIN base ON base.domain = declared.oid
JOIN named plain ON plain.oid = coalesce(base.oid, declared.oid)
WHERE declared.oid = ANY (%(oids)s::oid[]);

-- name: partitioned_by
-- The columns by which a table or its partitions are cut, which each unique index contains; NULL for an expression.
SELECT c.oid::bigint AS root, array_agg(a.attname::text) AS columns
FROM unnest(%(oids)s::oid[]) AS c (oid)
CROSS JOIN LATERAL pg_partition_tree(c.oid) p
JOIN pg_partitioned_table t ON t.partrelid = p.relid
CROSS JOIN LATERAL unnest(t.partattrs::smallint[]) AS k (attnum)
LEFT JOIN pg_attribute a ON a.attrelid = t.partrelid AND a.attnum = k.attnum
GROUP BY c.oid;

-- name: parts
SELECT c.oid::bigint AS root, p.relid::bigint AS oid
FROM unnest(%(oids)s::oid[]) AS c (oid)
CROSS JOIN LATERAL pg_partition_tree(c.oid) p
WHERE p.relid <> c.oid;

-- name: unique_indexes
-- `roots` are the tables, `oids` these and their parts. Those of one partition alone are told with its table, and can
-- be nobody's key. By indexes, as in `describe`.
SELECT held.root, i.indexrelid::bigint AS oid, i.relname AS name, i.indisexclusion AS exclusion,
       i.indimmediate AS immediate, i.is_plain AND held.oid = held.root AS usable, i.reads,
       ARRAY(
           SELECT (SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = held.oid AND a.attnum = k.attnum)
           FROM unnest(i.attnums) WITH ORDINALITY AS k (attnum, ordinal)
           ORDER BY k.ordinal
       ) AS columns,
       i.opclasses
FROM unnest(%(roots)s::bigint[], %(oids)s::bigint[]) AS held (root, oid)
CROSS JOIN LATERAL (
    SELECT x.indexrelid, x.indisprimary, x.indisexclusion, x.indimmediate, c.relname,
           x.indkey[0:x.indnkeyatts - 1]::smallint[] AS attnums, x.indclass[0:x.indnkeyatts - 1]::bigint[] AS opclasses,
           x.indpred IS NULL AND x.indexprs IS NULL AND x.indisunique AND x.indisvalid AS is_plain,
           x.indpred IS NOT NULL OR x.indexprs IS NOT NULL AS reads
    FROM pg_index x
    JOIN pg_class c ON c.oid = x.indexrelid
    WHERE x.indrelid = held.oid AND (x.indisunique OR x.indisexclusion)
      AND (held.oid = held.root OR NOT c.relispartition)
    OFFSET 0
) i
ORDER BY held.root, i.indisprimary DESC, i.relname;

-- name: index_reads
-- The columns in the expressions and the condition of indexes.
SELECT x.indexrelid::bigint AS oid, r.attname::text AS column
FROM pg_index x
JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = x.indexrelid
JOIN pg_attribute r ON r.attrelid = d.refobjid AND r.attnum = d.refobjsubid
WHERE x.indexrelid = ANY (%(oids)s::oid[])
  AND d.refclassid = 'pg_class'::regclass AND d.refobjid = x.indrelid AND d.refobjsubid > 0
ORDER BY x.indexrelid, r.attnum;

-- name: equalities
-- An operator class's own equality; of a method that has none of its own (WITHOUT OVERLAPS), that of the type's order.
-- 403 is btree on every server.
SELECT oc.oid::bigint AS oid, format('OPERATOR(%%I.%%s)', n.nspname, op.oprname) AS operator
FROM pg_opclass oc
JOIN pg_opclass equal ON equal.oid = CASE oc.opcmethod WHEN 403 THEN oc.oid ELSE (
    SELECT usual.oid FROM pg_opclass usual
    WHERE usual.opcmethod = 403 AND usual.opcdefault AND usual.opcintype = oc.opcintype
) END
JOIN pg_amop am ON am.amopfamily = equal.opcfamily AND am.amopstrategy = 3
     AND am.amoplefttype = equal.opcintype AND am.amoprighttype = equal.opcintype
JOIN pg_operator op ON op.oid = am.amopopr
JOIN pg_namespace n ON n.oid = op.oprnamespace
WHERE oc.oid = ANY (%(oids)s::oid[]);

-- name: foreign_keys
-- Those of these tables or to them, or of one of their partitions alone. NULL: the other end is another table's.
WITH held (root, oid) AS MATERIALIZED (
    SELECT oid, oid FROM unnest(%(oids)s::oid[]) AS oid
    UNION
    SELECT c.oid, p.relid
    FROM pg_class c
    CROSS JOIN LATERAL pg_partition_tree(c.oid) p
    WHERE c.oid = ANY (%(oids)s::oid[]) AND c.relkind = 'p'
)
SELECT k.conname AS name, child.root::bigint AS child, parent.root::bigint AS parent
FROM pg_constraint k
LEFT JOIN held child ON child.oid = k.conrelid
LEFT JOIN held parent ON parent.oid = k.confrelid
WHERE k.contype = 'f' AND k.conparentid = 0 AND (child.root IS NOT NULL OR parent.root IS NOT NULL)
ORDER BY 1;

-- name: references
-- Foreign keys of other tables to these, or to a partition of theirs alone.
WITH held (root, oid) AS (
    SELECT oid, oid FROM unnest(%(oids)s::oid[]) AS oid
    UNION
    SELECT c.oid, p.relid
    FROM pg_class c
    CROSS JOIN LATERAL pg_partition_tree(c.oid) p
    WHERE c.oid = ANY (%(oids)s::oid[]) AND c.relkind = 'p'
)
SELECT k.conname AS name, held.root::bigint AS root,
       k.conrelid::regclass::text AS child_name, k.confrelid::regclass::text AS parent_name
FROM pg_constraint k
JOIN held ON held.oid = k.confrelid
WHERE k.contype = 'f' AND k.conparentid = 0 AND k.conrelid NOT IN (SELECT oid FROM held)
ORDER BY 1;

-- name: links
SELECT cn.nspname::text, c.relname::text, pn.nspname::text, p.relname::text, l.is_key
FROM (
    SELECT conrelid AS child, confrelid AS parent, true AS is_key FROM pg_constraint WHERE contype = 'f'
    UNION
    SELECT i.inhrelid, i.inhparent, false
    FROM pg_inherits i
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition AND c.relkind IN ('r', 'p')
) l
JOIN pg_class c ON c.oid = l.child
JOIN pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_class p ON p.oid = l.parent
JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE %(schema)s NOT IN (cn.nspname, pn.nspname)
ORDER BY 1, 2, 3, 4, 5;

-- name: acting_keys
-- Foreign keys that change the child when the parent's row goes or gets another key. Not the parts that the server makes
-- of one for partitions. An end is each table that has rows of it: the table, its partitions, those that it is one of.
SELECT k.conname::text AS name,
       ARRAY(SELECT k.conrelid UNION SELECT * FROM pg_partition_ancestors(k.conrelid)
             UNION SELECT relid FROM pg_partition_tree(k.conrelid))::bigint[] AS children,
       ARRAY(SELECT k.confrelid UNION SELECT * FROM pg_partition_ancestors(k.confrelid)
             UNION SELECT relid FROM pg_partition_tree(k.confrelid))::bigint[] AS parents,
       format('%I.%I', n.nspname, p.relname) AS parent_name,
       (SELECT format('%I.%I', hn.nspname, h.relname) FROM pg_class h JOIN pg_namespace hn ON hn.oid = h.relnamespace
        WHERE h.oid = k.conrelid) AS child_name,
       k.condeferrable AS deferrable,
       array_agg(a.attname::text ORDER BY c.ordinal) AS columns,
       array_agg(b.attname::text ORDER BY c.ordinal) AS referenced,
       array_agg(format('OPERATOR(%I.%s)', o.nspname, op.oprname) ORDER BY c.ordinal) AS operators
FROM pg_constraint k
JOIN pg_class p ON p.oid = k.confrelid
JOIN pg_namespace n ON n.oid = p.relnamespace
CROSS JOIN LATERAL unnest(k.conkey, k.confkey, k.conpfeqop) WITH ORDINALITY AS c(own, other, operator, ordinal)
JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = c.own
JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = c.other
JOIN pg_operator op ON op.oid = c.operator
JOIN pg_namespace o ON o.oid = op.oprnamespace
WHERE k.contype = 'f' AND k.conparentid = 0
  AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
  AND coalesce((to_jsonb(k) ->> 'conenforced')::boolean, true) -- Known from version 18 on.
GROUP BY k.oid, k.conrelid, k.confrelid, n.nspname, p.relname, k.condeferrable
ORDER BY k.oid;

-- name: missing_privileges
SELECT t.ordinal - 1, p.privilege
FROM unnest(%(oids)s::oid[]) WITH ORDINALITY AS t(oid, ordinal)
CROSS JOIN unnest('{{SELECT,INSERT,UPDATE,DELETE,TRUNCATE}}'::text[]) AS p(privilege)
WHERE NOT has_table_privilege(t.oid, p.privilege)
ORDER BY 1, 2;

-- name: may_be_replica
-- Or is one without being asked: roles and databases have defaults that a superuser gave them.
SELECT has_parameter_privilege(current_user, 'session_replication_role', 'SET')
    OR current_setting('session_replication_role') = 'replica';
