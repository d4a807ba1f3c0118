-- What the catalog says now about the tables of a publication, those of some oids and those of some names: one row for
-- each of them, without a parent, and one for each of its partitions at any depth. A partition whose concurrent
-- detaching is under way is none any more. Versions before 15 know neither row filters nor column lists. Types that
-- come with the server are neither enums nor made of them; their oids are below 16384.
WITH RECURSIVE publication AS (
    SELECT p.oid FROM pg_catalog.pg_publication p WHERE p.pubname = %(publication)s
), member AS (
    SELECT
        r.prrelid,
        r.oid,
        to_jsonb(r) ->> 'prqual' IS NOT NULL AS has_filter,
        to_jsonb(r) ->> 'prattrs' IS NOT NULL AS has_list
    FROM pg_catalog.pg_publication_rel r
    JOIN publication ON publication.oid = r.prpubid
), watched AS (
    -- With the version of the publication, which may have been altered, or have had another name, for a while.
    SELECT r.prrelid, r.oid::bigint + (p.xmin::text::bigint << 32) AS entry
    FROM pg_catalog.pg_publication_rel r
    JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = %(watch)s AND p.pubtruncate AND NOT p.pubviaroot
), tree (root, oid, parent, link) AS (
    SELECT oid, oid, 0::oid, 0::bigint
    FROM (
        SELECT prrelid FROM member
        UNION
        SELECT unnest(%(oids)s::oid[])
        UNION
        SELECT c.oid
        FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS named (schema, name)
        JOIN pg_catalog.pg_namespace n ON n.nspname = named.schema
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = named.name AND c.relkind IN ('r', 'p')
    ) AS wanted (oid)
    UNION ALL
    SELECT tree.root, i.inhrelid, i.inhparent, i.xmin::text::bigint
    FROM tree
    JOIN pg_catalog.pg_class c ON c.oid = tree.oid AND c.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid AND NOT i.inhdetachpending
), above (root, child, parent, link) AS (
    SELECT t.oid, i.inhrelid, i.inhparent, i.xmin::text::bigint
    FROM tree t
    JOIN pg_catalog.pg_class c ON c.oid = t.oid AND NOT c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = t.oid
    WHERE t.parent = 0
    UNION
    SELECT above.root, i.inhrelid, i.inhparent, i.xmin::text::bigint
    FROM above
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.parent
), inherited AS (
    SELECT root, jsonb_agg(jsonb_build_array(child::bigint, parent::bigint, link) ORDER BY child, parent) AS links
    FROM above
    GROUP BY root
), used (root, type) AS (
    SELECT t.root, a.atttypid
    FROM tree t
    JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE t.parent = 0 AND a.atttypid >= 16384
    UNION
    SELECT used.root, inner_types.type
    FROM used
    JOIN pg_catalog.pg_type t ON t.oid = used.type
    CROSS JOIN LATERAL (
        SELECT unnest(ARRAY[t.typelem, t.typbasetype])
        UNION ALL
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
    ) AS inner_types (type)
    WHERE inner_types.type >= 16384
), composed AS (
    SELECT used.root, jsonb_agg(jsonb_build_array(t.typrelid::bigint, (
        SELECT coalesce(string_agg(a.attnum::text, ' ' ORDER BY a.attnum) FILTER (WHERE NOT a.attisdropped), '')
            || '/' || count(*)
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0
    )) ORDER BY t.oid) AS attributes
    FROM used
    JOIN pg_catalog.pg_type t ON t.oid = used.type AND t.typtype = 'c'
    GROUP BY used.root
), labelled AS (
    SELECT used.root, jsonb_agg(
        jsonb_build_array(e.oid::bigint, e.enumlabel, e.xmin::text::bigint) ORDER BY e.oid
    ) AS labels
    FROM used
    JOIN pg_catalog.pg_enum e ON e.enumtypid = used.type
    GROUP BY used.root
)
SELECT
    t.root::bigint,
    t.oid::bigint,
    t.parent::bigint,
    t.link,
    n.nspname,
    c.relname,
    c.relkind::text,
    c.relispartition,
    CASE WHEN c.relkind = 'r' THEN c.relfilenode::bigint ELSE 0 END,
    m.oid::bigint,
    coalesce(m.has_filter, false),
    coalesce(m.has_list, false),
    w.entry,
    c.xmin::text || ' ' || n.xmin::text,
    CASE WHEN t.parent = 0 THEN ARRAY(
        SELECT CASE WHEN a.attisdropped OR a.attgenerated <> '' THEN 0 ELSE a.xmin::text::bigint END
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.oid AND a.attnum > 0
        ORDER BY a.attnum
    ) END,
    l.labels,
    k.attributes,
    h.links,
    c.relpersistence = 'u'
FROM tree t
JOIN pg_catalog.pg_class c ON c.oid = t.oid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN member m ON m.prrelid = t.oid AND t.parent = 0
LEFT JOIN watched w ON w.prrelid = t.oid
LEFT JOIN labelled l ON l.root = t.oid AND t.parent = 0
LEFT JOIN composed k ON k.root = t.oid AND t.parent = 0
LEFT JOIN inherited h ON h.root = t.oid AND t.parent = 0
ORDER BY t.root, t.parent <> 0, t.oid
