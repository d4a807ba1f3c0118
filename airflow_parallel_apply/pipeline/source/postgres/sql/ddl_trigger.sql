-- Sends what a followed table has become, whenever its definition changes: what the catalog will not tell later. It never
-- stands in the way of the change: what cannot be sent is less that is proven, and no more than that. What stands in
-- braces are the statements that capture itself asks with, and the settings of its sessions: values and types are printed
-- under those, whatever the session has that changes the definition.
CREATE OR REPLACE FUNCTION parallel_apply.sighting(followed oid) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp {settings}
AS $sighting$
    SELECT json_build_object(
        'version', 1,
        'is_exact', true,
        'shape', (
            SELECT json_build_array(s.oid, s.partitioned, s.leaves, s.last, s.columns, s.index, s.key, s.rewritten, s.schema, s.name)
            FROM ({shape}) AS s (oid, partitioned, leaves, last, columns, index, key, rewritten, schema, name)
        ),
        'fills', coalesce(
            (
                SELECT json_agg(json_build_array(f.number, f.part, f.file, f.value))
                FROM ({fills}) AS f (number, part, file, value)
            ),
            '[]'
        )
    )::text
$sighting$;
REVOKE ALL ON FUNCTION parallel_apply.sighting(oid) FROM PUBLIC;

CREATE OR REPLACE FUNCTION parallel_apply.capture_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $capture$
DECLARE
    followed oid;
    renamed json;
BEGIN
    -- A schema may have thousands of tables, of which nothing else has changed.
    FOR renamed IN
        SELECT json_build_object('version', 2, 'schema', n.nspname, 'tables', json_agg(DISTINCT t.oid::bigint))
        FROM pg_event_trigger_ddl_commands() AS c
        JOIN pg_namespace n ON n.oid = c.objid
        JOIN pg_class t ON t.relnamespace = n.oid
        JOIN pg_publication_rel r ON r.prrelid = t.oid
        WHERE c.classid = 'pg_namespace'::regclass
            AND starts_with(obj_description(r.prpubid, 'pg_publication'), 'parallel_apply: log ')
        GROUP BY n.oid, n.nspname
    LOOP
        PERFORM parallel_apply.send_signed('parallel_apply.sighting', renamed::text);
    END LOOP;
    FOR followed IN
        WITH RECURSIVE altered (oid) AS (
            SELECT coalesce(pg_partition_root(coalesce(i.indrelid, c.objid)), i.indrelid, c.objid)
            FROM pg_event_trigger_ddl_commands() AS c
            LEFT JOIN pg_index i ON i.indexrelid = c.objid
            WHERE c.classid = 'pg_class'::regclass
            UNION
            -- What is done to the attributes of a type is done to its row's description in `pg_class`.
            SELECT t.oid
            FROM pg_event_trigger_ddl_commands() AS c
            JOIN pg_class y ON y.oid = c.objid AND y.relkind = 'c'
            JOIN pg_class t ON t.reloftype = y.reltype
            WHERE c.classid = 'pg_class'::regclass
            UNION
            SELECT h.inhrelid
            FROM altered
            JOIN pg_inherits h ON h.inhparent = altered.oid
        )
        SELECT DISTINCT r.prrelid
        FROM altered
        JOIN pg_publication_rel r ON r.prrelid = altered.oid
        -- Of each publication, of which there are few, and not of each table in one, the comment is looked for.
        WHERE r.prpubid IN (
            SELECT p.oid
            FROM pg_publication p
            WHERE starts_with(obj_description(p.oid, 'pg_publication'), 'parallel_apply: log ')
        )
    LOOP
        PERFORM parallel_apply.send_signed('parallel_apply.sighting', parallel_apply.sighting(followed));
    END LOOP;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'parallel_apply.capture_ddl sent nothing: %', SQLERRM;
END
$capture$;
REVOKE ALL ON FUNCTION parallel_apply.capture_ddl() FROM PUBLIC;

-- True if each USING of a statement is the cast that the statement would do without it, as migration tools write it:
-- ALTER age TYPE bigint USING age::bigint, (age::bigint) or CAST(age AS bigint). To numbers, times and texts of any length
-- alone: an explicit cast to other types may cut what one without USING refuses. What is no code may be taken for a USING,
-- and for one that does not cast, but not the other way round: a USING and its words follow each other without a comment,
-- and a text in which a comment may end with its line is not read, nor one of more than a hundred, which each rewrite would
-- read again. Words are compared as the server reads them: in Turkish an i is none of USING.
CREATE OR REPLACE FUNCTION parallel_apply.only_casts(query text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $casts$
DECLARE
    told text COLLATE "C" := query;
    of_column text := E'("[^"]+"|[a-z_][a-z0-9_]*)';
    of_type text := E'((?:smallint|integer|int[248]?|bigint|numeric|decimal|real|float[48]?|double\\s+precision|text|'
        || E'varchar|character\\s+varying|timestamp|timestamptz|time)(?:\\s*\\([0-9,\\s]+\\))?'
        || E'(?:\\s+with(?:out)?\\s+time\\s+zone)?(?:\\[\\])?)';
    cast_column text := of_column || E'\\s*::\\s*' || of_type;
    uses bigint := (SELECT count(*) FROM regexp_matches(told, E'\\musing\\M', 'gi'));
BEGIN
    IF uses = 0 OR uses > 100 OR strpos(told, '--') > 0 THEN
        RETURN uses = 0;
    END IF;
    told := regexp_replace(told, E'\\musing\\s*\\(\\s*' || cast_column || E'\\s*\\)', E'using \\1::\\2', 'gi');
    told := regexp_replace(
        told, E'\\musing\\s+cast\\s*\\(\\s*' || of_column || E'\\s+as\\s+' || of_type || E'\\s*\\)', E'using \\1::\\2', 'gi'
    );
    RETURN uses = (
        SELECT count(*)
        FROM regexp_matches(
            told,
            E'\\malter\\s+(?:column\\s+)?' || of_column || E'\\s+(?:set\\s+data\\s+)?type\\s+' || of_type
                || E'\\s+using\\s+' || cast_column || E'\\s*(?:/\\*[^*]*\\*/\\s*)?(?=[,;]|$)',
            'gi'
        ) AS m
        WHERE CASE WHEN m[1] ~ '"' THEN btrim(m[1], '"') ELSE lower(m[1]) END
                = CASE WHEN m[3] ~ '"' THEN btrim(m[3], '"') ELSE lower(m[3]) END
            AND regexp_replace(lower(m[2]), E'\\s', '', 'g') = regexp_replace(lower(m[4]), E'\\s', '', 'g')
            AND m[2] !~* E'^(varchar|character).*\\('
    );
END
$casts$;
REVOKE ALL ON FUNCTION parallel_apply.only_casts(text) FROM PUBLIC;

-- Tells of each rewrite of a followed table that a statement makes which its sender wrote as it is, without USING or with
-- one that only casts: a statement inside of a function, a DO block or another trigger is not what `current_query()` says,
-- and adds its place to the context. One in the script of an extension does not, before version 18. The body is read
-- under the settings of the session: a plain string of it may have no backslash.
CREATE OR REPLACE FUNCTION parallel_apply.capture_rewrite() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $capture$
DECLARE
    context text;
BEGIN
    GET DIAGNOSTICS context = PG_CONTEXT;
    PERFORM parallel_apply.send_signed(
        'parallel_apply.rewrite',
        json_build_object(
            'part', c.oid::bigint,
            'file', c.relfilenode::bigint,
            'is_plain', strpos(context, chr(10)) = 0 AND coalesce(
                current_query() COLLATE "C" ~* E'\\malter\\s+(table|type)\\M'
                    AND current_query() COLLATE "C" !~* E'\\m(alter|create)\\s+extension\\M'
                    AND parallel_apply.only_casts(current_query()),
                false
            )
        )::text
    )
    FROM pg_class c
    WHERE c.oid = pg_event_trigger_table_rewrite_oid()
        AND EXISTS (
            SELECT
            FROM pg_publication_rel r
            WHERE r.prrelid = coalesce(pg_partition_root(c.oid), c.oid)
                AND starts_with(obj_description(r.prpubid, 'pg_publication'), 'parallel_apply: log ')
        );
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'parallel_apply.capture_rewrite sent nothing: %', SQLERRM;
END
$capture$;
REVOKE ALL ON FUNCTION parallel_apply.capture_rewrite() FROM PUBLIC;

DROP EVENT TRIGGER IF EXISTS parallel_apply_capture_rewrite;
CREATE EVENT TRIGGER parallel_apply_capture_rewrite ON table_rewrite
    WHEN TAG IN ('ALTER TABLE', 'ALTER TYPE')
    EXECUTE FUNCTION parallel_apply.capture_rewrite();
ALTER EVENT TRIGGER parallel_apply_capture_rewrite ENABLE ALWAYS;

DROP EVENT TRIGGER IF EXISTS parallel_apply_capture_ddl;
CREATE EVENT TRIGGER parallel_apply_capture_ddl ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE INDEX', 'ALTER INDEX', 'ALTER TYPE', 'ALTER SCHEMA')
    EXECUTE FUNCTION parallel_apply.capture_ddl();
-- In sessions that replicate as well: their changes are changes, too.
ALTER EVENT TRIGGER parallel_apply_capture_ddl ENABLE ALWAYS;
