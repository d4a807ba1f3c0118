-- Tells when a followed table loses a partition that is detached or dropped, with its rows, of which none is sent. What a
-- command takes away is known only before it, so the partitions are noted as it begins, in a setting of its transaction,
-- and compared as it ends. Which rows those were, capture has asked before. DETACH CONCURRENTLY ends in another
-- transaction, whose setting is empty: of that, and of commands of other kinds that drop partitions (DROP SCHEMA, DROP
-- OWNED), nothing is told.

-- The partitions at any depth of the followed tables that are roots, each with its parent and the version of its entry
-- there. No table is locked for that.
CREATE OR REPLACE FUNCTION parallel_apply.parts() RETURNS TABLE (root oid, part oid, parent oid, link bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $parts$
    WITH RECURSIVE tree AS (
        SELECT i.inhparent AS root, i.inhrelid AS part, i.inhparent AS parent, i.xmin::text::bigint AS link
        FROM pg_publication_rel r
        JOIN pg_class c ON c.oid = r.prrelid AND c.relkind = 'p' AND NOT c.relispartition
        JOIN pg_inherits i ON i.inhparent = c.oid AND NOT i.inhdetachpending
        WHERE r.prpubid IN (
            SELECT p.oid
            FROM pg_publication p
            WHERE starts_with(obj_description(p.oid, 'pg_publication'), 'parallel_apply: log ')
        )
        UNION
        SELECT tree.root, i.inhrelid, i.inhparent, i.xmin::text::bigint
        FROM tree
        JOIN pg_inherits i ON i.inhparent = tree.part AND NOT i.inhdetachpending
    )
    SELECT tree.root, tree.part, tree.parent, tree.link FROM tree
$parts$;
REVOKE ALL ON FUNCTION parallel_apply.parts() FROM PUBLIC;

-- A transaction of another isolation would note what was there when it began. An ALTER TABLE that its sender wrote as it
-- is, without the word, detaches nothing.
CREATE OR REPLACE FUNCTION parallel_apply.note_parts() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $note$
DECLARE
    context text;
BEGIN
    PERFORM set_config('parallel_apply.parts', '', true);
    GET DIAGNOSTICS context = PG_CONTEXT;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    IF tg_tag = 'ALTER TABLE' AND strpos(context, chr(10)) = 0 AND current_query() COLLATE "C" !~* 'detach' THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM set_config('parallel_apply.parts', coalesce(json_agg(p)::text, ''), true) FROM parallel_apply.parts() AS p;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'parallel_apply.note_parts noted nothing: %', SQLERRM;
    END;
END
$note$;
REVOKE ALL ON FUNCTION parallel_apply.note_parts() FROM PUBLIC;

-- One message for each partition that this command took away, with those below it, if the table is still there. Of what
-- others took away meanwhile, their commands tell: whose command it was, holds it locked.
CREATE OR REPLACE FUNCTION parallel_apply.capture_removal() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $capture$
DECLARE
    before json;
    is_any boolean;
BEGIN
    before := nullif(current_setting('parallel_apply.parts', true), '');
    IF before IS NULL THEN
        RETURN;
    END IF;
    PERFORM set_config('parallel_apply.parts', '', true);
    -- Not one by one, as the planner may take it without statistics of the catalog.
    SELECT INTO is_any EXISTS (
        SELECT
        FROM json_to_recordset(before) AS p (part oid, parent oid)
        WHERE (p.part, p.parent) NOT IN (SELECT i.inhrelid, i.inhparent FROM pg_inherits i)
    );
    IF NOT is_any THEN
        RETURN;
    END IF;
    PERFORM parallel_apply.send_signed('parallel_apply.removal', told.message::text)
    FROM (
        WITH RECURSIVE noted AS (
            SELECT * FROM json_to_recordset(before)
                AS p (root oid, part oid, parent oid, link bigint)
        ), first AS (
            SELECT noted.*
            FROM noted
            JOIN pg_class c ON c.oid = noted.root AND c.relkind = 'p' AND NOT c.relispartition
            JOIN pg_locks l ON l.relation = noted.part AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
                AND l.granted AND l.pid = pg_backend_pid()
                AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
            WHERE noted.root IN (SELECT r.prrelid FROM pg_publication_rel r) AND NOT EXISTS (
                SELECT FROM pg_inherits i WHERE i.inhrelid = noted.part AND i.inhparent = noted.parent
            )
        ), gone (above, root, part, parent, link) AS (
            SELECT first.part, first.root, first.part, first.parent, first.link
            FROM first
            WHERE first.parent NOT IN (SELECT one.part FROM first AS one)
            UNION
            SELECT gone.above, noted.root, noted.part, noted.parent, noted.link
            FROM gone
            JOIN noted ON noted.root = gone.root AND noted.parent = gone.part
        )
        SELECT json_build_object(
            'version', 1,
            'root', first.root::bigint,
            'part', first.part::bigint,
            'parts', (
                SELECT json_agg(json_build_array(gone.part::bigint, gone.parent::bigint, gone.link))
                FROM gone
                WHERE gone.above = first.part AND gone.root = first.root
            )
        ) AS message
        FROM first
        WHERE first.parent NOT IN (SELECT one.part FROM first AS one)
    ) AS told;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'parallel_apply.capture_removal sent nothing: %', SQLERRM;
END
$capture$;
REVOKE ALL ON FUNCTION parallel_apply.capture_removal() FROM PUBLIC;

DROP EVENT TRIGGER IF EXISTS parallel_apply_note_parts;
CREATE EVENT TRIGGER parallel_apply_note_parts ON ddl_command_start
    WHEN TAG IN ('ALTER TABLE', 'DROP TABLE')
    EXECUTE FUNCTION parallel_apply.note_parts();
ALTER EVENT TRIGGER parallel_apply_note_parts ENABLE ALWAYS;

DROP EVENT TRIGGER IF EXISTS parallel_apply_capture_removal;
CREATE EVENT TRIGGER parallel_apply_capture_removal ON ddl_command_end
    WHEN TAG IN ('ALTER TABLE', 'DROP TABLE')
    EXECUTE FUNCTION parallel_apply.capture_removal();
ALTER EVENT TRIGGER parallel_apply_capture_removal ENABLE ALWAYS;
