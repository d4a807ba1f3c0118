-- name: tree
-- The tables and, of partitioned ones, all partitions; parents first.
SELECT tree.relid::oid::bigint
FROM unnest(%(schemas)s::text[], %(tables)s::text[]) WITH ORDINALITY AS w (schema, name, number)
JOIN pg_namespace n ON n.nspname = w.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
CROSS JOIN LATERAL (
    SELECT c.oid AS relid, 0 AS level WHERE c.relkind <> 'p'
    UNION ALL
    SELECT t.relid, t.level FROM pg_partition_tree(c.oid) t WHERE c.relkind = 'p'
) tree
ORDER BY w.number, tree.level, tree.relid::oid;

-- name: heirs
-- Children that have columns from tables that are all among these. They are made as such: what a parent loses or renames
-- later, they lose or rename, too.
SELECT c.oid::bigint
FROM pg_class c
WHERE c.oid = ANY (%(oids)s::bigint[]::oid[]) AND NOT c.relispartition
    AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attislocal AND NOT a.attisdropped)
    AND NOT EXISTS (
        SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid AND h.inhparent <> ALL (%(oids)s::bigint[]::oid[])
    )
ORDER BY c.oid;

-- name: types
-- What columns are made of, all or those of these names, and no extension brings; what others are made of first. Left out
-- are a domain's default that needs something of the source's own, and a constraint that values which are there may break
-- (NOT VALID).
WITH RECURSIVE wanted (oid, depth) AS (
    SELECT a.atttypid, 0
    FROM pg_attribute a
    WHERE a.attrelid = ANY (%(oids)s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
        AND (%(columns)s::text[] IS NULL OR a.attname = ANY (%(columns)s::text[]))
    UNION
    SELECT x.oid, w.depth + 1
    FROM wanted w
    JOIN pg_type t ON t.oid = w.oid
    CROSS JOIN LATERAL (
        SELECT t.typelem WHERE t.typcategory = 'A' AND t.typelem <> 0
        UNION ALL
        SELECT t.typbasetype WHERE t.typtype = 'd'
        UNION ALL
        SELECT a.atttypid
        FROM pg_attribute a
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
        UNION ALL
        SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid
    ) x (oid)
    WHERE w.depth < 64
), deepest AS (
    SELECT oid, max(depth) AS depth FROM wanted GROUP BY oid
)
SELECT
    n.nspname,
    t.typname,
    CASE t.typtype
        WHEN 'e' THEN format(
            'CREATE TYPE %%I.%%I AS ENUM (%%s)', n.nspname, t.typname,
            (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
             FROM pg_enum e WHERE e.enumtypid = t.oid)
        )
        WHEN 'd' THEN format('CREATE DOMAIN %%I.%%I AS %%s', n.nspname, t.typname, format_type(t.typbasetype, t.typtypmod))
            || CASE WHEN l.oid IS NOT NULL AND t.typcollation <> b.typcollation
                   THEN format(' COLLATE %%I.%%I', ln.nspname, l.collname) ELSE '' END
            || coalesce(
                (SELECT ' DEFAULT ' || pg_get_expr(t.typdefaultbin, 'pg_type'::regclass)
                 WHERE NOT EXISTS (
                     SELECT FROM pg_depend x
                     WHERE x.classid = 'pg_type'::regclass AND x.objid = t.oid
                         AND x.refclassid IN ('pg_proc'::regclass, 'pg_class'::regclass)
                         AND x.refobjid NOT IN (t.typinput, t.typoutput, t.typreceive, t.typsend, t.typanalyze, t.typsubscript)
                 )),
                ''
            )
            || CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END
            || coalesce(
                (SELECT string_agg(format(' CONSTRAINT %%I %%s', k.conname, pg_get_constraintdef(k.oid)), '' ORDER BY k.conname)
                 FROM pg_constraint k WHERE k.contypid = t.oid AND k.contype = 'c' AND k.convalidated),
                ''
            )
        WHEN 'c' THEN format(
            'CREATE TYPE %%I.%%I AS (%%s)', n.nspname, t.typname,
            (SELECT string_agg(
                format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod))
                || CASE WHEN a.attcollation <> at.typcollation
                       THEN format(' COLLATE %%I.%%I', an.nspname, al.collname) ELSE '' END,
                ', ' ORDER BY a.attnum)
             FROM pg_attribute a
             JOIN pg_type at ON at.oid = a.atttypid
             LEFT JOIN pg_collation al ON al.oid = a.attcollation
             LEFT JOIN pg_namespace an ON an.oid = al.collnamespace
             WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped)
        )
        ELSE format(
            'CREATE TYPE %%I.%%I AS RANGE (SUBTYPE = %%s, SUBTYPE_OPCLASS = %%I.%%I%%s, MULTIRANGE_TYPE_NAME = %%I.%%I)',
            n.nspname, t.typname, format_type(r.rngsubtype, NULL), ocn.nspname, oc.opcname,
            CASE WHEN rl.oid IS NOT NULL THEN format(', COLLATION = %%I.%%I', rln.nspname, rl.collname) ELSE '' END,
            mn.nspname, m.typname
        )
    END
FROM deepest d
JOIN pg_type t ON t.oid = d.oid
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_class c ON c.oid = t.typrelid
LEFT JOIN pg_type b ON b.oid = t.typbasetype
LEFT JOIN pg_collation l ON l.oid = t.typcollation
LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
LEFT JOIN pg_range r ON r.rngtypid = t.oid
LEFT JOIN pg_opclass oc ON oc.oid = r.rngsubopc
LEFT JOIN pg_namespace ocn ON ocn.oid = oc.opcnamespace
LEFT JOIN pg_collation rl ON rl.oid = r.rngcollation
LEFT JOIN pg_namespace rln ON rln.oid = rl.collnamespace
LEFT JOIN pg_type m ON m.oid = r.rngmultitypid
LEFT JOIN pg_namespace mn ON mn.oid = m.typnamespace
WHERE (t.typtype IN ('e', 'd', 'r') OR (t.typtype = 'c' AND c.relkind = 'c'))
    AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND NOT EXISTS (
        SELECT FROM pg_depend x WHERE x.classid = 'pg_type'::regclass AND x.objid = t.oid AND x.deptype = 'e'
    )
ORDER BY d.depth DESC, t.oid;

-- name: sequences
-- Those that belong to a column: of serial columns (is_identity false), and of identity columns.
SELECT
    sn.nspname, s.relname, n.nspname, c.relname, a.attname, d.deptype = 'i',
    format(
        'AS %%s INCREMENT BY %%s MINVALUE %%s MAXVALUE %%s START WITH %%s CACHE %%s%%s',
        format_type(q.seqtypid, NULL), q.seqincrement, q.seqmin, q.seqmax, q.seqstart, q.seqcache,
        CASE WHEN q.seqcycle THEN ' CYCLE' ELSE '' END
    )
FROM pg_depend d
JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_namespace sn ON sn.oid = s.relnamespace
JOIN pg_sequence q ON q.seqrelid = s.oid
JOIN pg_class c ON c.oid = d.refobjid AND NOT c.relispartition
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
    AND d.refobjid = ANY (%(oids)s::bigint[]::oid[])
ORDER BY 1, 2;

-- name: tables
-- With what a COPY needs; the rest comes after the load. A default that needs something of the source's own is left out.
WITH RECURSIVE heirs AS (
    SELECT h.inhrelid AS oid, array_agg(h.inhparent ORDER BY h.inhseqno) AS parents
    FROM pg_inherits h
    WHERE h.inhrelid = ANY (%(heirs)s::bigint[]::oid[])
    GROUP BY h.inhrelid
), depths (oid, depth) AS (
    SELECT oid::oid, 0 FROM unnest(%(oids)s::bigint[]) oid
    UNION
    SELECT heirs.oid, d.depth + 1 FROM depths d JOIN heirs ON d.oid = ANY (heirs.parents)
), inherited AS (
    SELECT a.attrelid, a.attnum
    FROM heirs
    JOIN pg_attribute a ON a.attrelid = heirs.oid AND a.attnum > 0 AND NOT a.attisdropped AND NOT a.attislocal
    LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
    WHERE NOT EXISTS (
        SELECT
        FROM pg_attribute p
        LEFT JOIN pg_attrdef pf ON pf.adrelid = p.attrelid AND pf.adnum = p.attnum
        WHERE p.attrelid = ANY (heirs.parents) AND p.attname = a.attname AND NOT p.attisdropped
            AND (p.attnotnull, p.attgenerated, p.attcollation, pg_get_expr(pf.adbin, pf.adrelid))
                IS DISTINCT FROM (a.attnotnull, a.attgenerated, a.attcollation, pg_get_expr(f.adbin, f.adrelid))
    )
), columns AS (
    SELECT
        a.attrelid,
        string_agg(
            format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod))
            || CASE WHEN a.attcollation <> t.typcollation
                   THEN format(' COLLATE %%I.%%I', ln.nspname, l.collname) ELSE '' END
            || CASE
                   WHEN a.attgenerated <> '' THEN format(
                       ' GENERATED ALWAYS AS (%%s) %%s', pg_get_expr(f.adbin, f.adrelid),
                       CASE a.attgenerated WHEN 's' THEN 'STORED' ELSE 'VIRTUAL' END
                   )
                   WHEN a.attidentity <> '' THEN format(
                       ' GENERATED %%s AS IDENTITY (INCREMENT BY %%s MINVALUE %%s MAXVALUE %%s START WITH %%s CACHE %%s%%s)',
                       CASE a.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END,
                       q.seqincrement, q.seqmin, q.seqmax, q.seqstart, q.seqcache,
                       CASE WHEN q.seqcycle THEN ' CYCLE' ELSE '' END
                   )
                   WHEN f.oid IS NOT NULL AND own.foreign_count = 0 THEN ' DEFAULT ' || pg_get_expr(f.adbin, f.adrelid)
                   ELSE ''
               END
            || CASE WHEN a.attnotnull AND doubtful.attnum IS NULL THEN ' NOT NULL' ELSE '' END,
            ', ' ORDER BY a.attnum
        ) FILTER (WHERE inherited.attnum IS NULL) AS text,
        array_agg(a.attname::text ORDER BY a.attnum)
            FILTER (
                WHERE f.oid IS NOT NULL AND own.foreign_count > 0 AND a.attgenerated = '' AND inherited.attnum IS NULL
            ) AS left_out
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
    LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
    LEFT JOIN inherited ON inherited.attrelid = a.attrelid AND inherited.attnum = a.attnum
    LEFT JOIN pg_depend i ON i.classid = 'pg_class'::regclass AND i.refclassid = 'pg_class'::regclass
        AND i.refobjid = a.attrelid AND i.refobjsubid = a.attnum AND i.deptype = 'i' AND a.attidentity <> ''
    LEFT JOIN pg_sequence q ON q.seqrelid = i.objid
    -- NOT VALID: rows that are there may have none.
    LEFT JOIN (
        SELECT k.conrelid, unnest(k.conkey) AS attnum FROM pg_constraint k WHERE k.contype = 'n' AND NOT k.convalidated
    ) doubtful ON doubtful.conrelid = a.attrelid AND doubtful.attnum = a.attnum
    CROSS JOIN LATERAL (
        SELECT count(*) AS foreign_count
        FROM pg_depend d
        WHERE d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid <> 'pg_type'::regclass
            AND NOT (d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid)
            AND NOT EXISTS (
                SELECT
                FROM pg_depend o
                WHERE o.classid = 'pg_class'::regclass AND o.objid = d.refobjid AND o.deptype = 'a'
                    AND o.refobjid = a.attrelid AND o.refobjsubid = a.attnum
            )
    ) own
    WHERE a.attrelid = ANY (%(oids)s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY a.attrelid
)
SELECT
    n.nspname,
    c.relname,
    c.relispartition,
    CASE
        WHEN c.relispartition THEN format(
            'CREATE TABLE %%I.%%I PARTITION OF %%I.%%I %%s',
            n.nspname, c.relname, pn.nspname, p.relname, pg_get_expr(c.relpartbound, c.oid)
        )
        ELSE format('CREATE TABLE %%I.%%I (%%s)%%s', n.nspname, c.relname, coalesce(columns.text, ''), (
            SELECT format(' INHERITS (%%s)', string_agg(format('%%I.%%I', xn.nspname, x.relname), ', ' ORDER BY u.number))
            FROM heirs
            CROSS JOIN unnest(heirs.parents) WITH ORDINALITY AS u (oid, number)
            JOIN pg_class x ON x.oid = u.oid
            JOIN pg_namespace xn ON xn.oid = x.relnamespace
            WHERE heirs.oid = c.oid
            HAVING count(*) > 0
        ))
    END
    || CASE WHEN c.relkind = 'p' THEN ' PARTITION BY ' || pg_get_partkeydef(c.oid) ELSE '' END
    || coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')', ''),
    CASE WHEN c.relispartition THEN '{{}}' ELSE coalesce(columns.left_out, '{{}}') END
FROM unnest(%(oids)s::bigint[]) WITH ORDINALITY AS w (oid, number)
JOIN pg_class c ON c.oid = w.oid::oid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN columns ON columns.attrelid = c.oid
LEFT JOIN pg_inherits h ON h.inhrelid = c.oid AND c.relispartition
LEFT JOIN pg_class p ON p.oid = h.inhparent
LEFT JOIN pg_namespace pn ON pn.oid = p.relnamespace
ORDER BY (SELECT max(d.depth) FROM depths d WHERE d.oid = c.oid), w.number;

-- name: constraints
-- Parents' constraints make their partitions' and children's. Not null came with the columns. A child's valid one goes
-- before its parent's that is not, which would make it as it is itself.
SELECT
    n.nspname,
    c.relname,
    k.contype::text,
    format('ALTER TABLE %%I.%%I ADD CONSTRAINT %%I %%s', n.nspname, c.relname, k.conname, pg_get_constraintdef(k.oid)),
    CASE WHEN r.oid IS NOT NULL THEN format('%%I.%%I', rn.nspname, r.relname) END
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class r ON r.oid = k.confrelid
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
WHERE k.conrelid = ANY (%(oids)s::bigint[]::oid[]) AND k.contype IN ('p', 'u', 'x', 'c', 'f') AND k.conparentid = 0
    AND (k.conislocal OR NOT c.relispartition AND c.oid <> ALL (%(heirs)s::bigint[]::oid[]))
ORDER BY position(k.contype::text IN 'puxcf'), NOT k.convalidated, n.nspname, c.relname, k.conname;

-- name: indexes
SELECT
    n.nspname,
    c.relname,
    CASE WHEN x.relkind = 'I' THEN regexp_replace(pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON ')
        ELSE pg_get_indexdef(i.indexrelid) END
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid
JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE i.indrelid = ANY (%(oids)s::bigint[]::oid[]) AND NOT x.relispartition AND i.indislive
    AND (i.indisvalid OR x.relkind = 'I')
    AND NOT EXISTS (
        SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u', 'x')
    )
ORDER BY n.nspname, c.relname, x.relname;

-- name: inheritance
-- Of children that were not made as such.
SELECT
    format('%%I.%%I', pn.nspname, p.relname),
    format('ALTER TABLE %%I.%%I INHERIT %%I.%%I', n.nspname, c.relname, pn.nspname, p.relname)
FROM pg_inherits h
JOIN pg_class c ON c.oid = h.inhrelid AND NOT c.relispartition
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class p ON p.oid = h.inhparent
JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE h.inhrelid = ANY (%(oids)s::bigint[]::oid[]) AND h.inhrelid <> ALL (%(heirs)s::bigint[]::oid[])
ORDER BY h.inhrelid, h.inhseqno;
