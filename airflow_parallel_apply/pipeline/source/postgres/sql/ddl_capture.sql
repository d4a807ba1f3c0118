-- What lets a DDL message prove that somebody sent it who may: `parallel_apply.send_ddl` signs it with keys that only
-- these functions read, and names the transaction in what it signs, so that a message cannot be sent a second time.
-- H(outer || H(inner || text)) with two independent keys as long as a block of SHA-256, each from the server's own
-- random numbers: 122 bits in every 16 bytes.
CREATE SCHEMA IF NOT EXISTS parallel_apply;
GRANT USAGE ON SCHEMA parallel_apply TO PUBLIC;

CREATE TABLE IF NOT EXISTS parallel_apply.ddl_key (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    inner_key bytea NOT NULL,
    outer_key bytea NOT NULL
);
REVOKE ALL ON parallel_apply.ddl_key FROM PUBLIC;
INSERT INTO parallel_apply.ddl_key (inner_key, outer_key)
SELECT
    pg_catalog.string_agg(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), '' ORDER BY part),
    pg_catalog.string_agg(pg_catalog.uuid_send(pg_catalog.gen_random_uuid()), '' ORDER BY part)
FROM pg_catalog.generate_series(1, 4) AS part
ON CONFLICT DO NOTHING;

CREATE OR REPLACE FUNCTION parallel_apply.ddl_signature(transaction text, prefix text, content bytea) RETURNS bytea
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT sha256(outer_key || sha256(inner_key || convert_to(transaction || ' ' || prefix || ' ', 'UTF8') || content))
    FROM parallel_apply.ddl_key
$$;
REVOKE ALL ON FUNCTION parallel_apply.ddl_signature(text, text, bytea) FROM PUBLIC;

CREATE OR REPLACE FUNCTION parallel_apply.ddl_is_signed(transaction text, prefix text, message bytea) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT coalesce(
        octet_length(message) >= 32
        AND substring(message FROM 1 FOR 32)
            = parallel_apply.ddl_signature(transaction, prefix, substring(message FROM 33)),
        false
    )
$$;
GRANT EXECUTE ON FUNCTION parallel_apply.ddl_is_signed(text, text, bytea) TO PUBLIC;

CREATE OR REPLACE FUNCTION parallel_apply.send_signed(prefix text, content text) RETURNS pg_lsn
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT pg_logical_emit_message(
        true,
        prefix,
        parallel_apply.ddl_signature(
            pg_current_xact_id()::xid::text, prefix, convert_to(content, getdatabaseencoding())
        ) || convert_to(content, getdatabaseencoding())
    );
    -- A message has the LSN of its record's end, which is where the next change begins. Of two subtransactions that meet
    -- there either may be decoded first: so what is next is another message, which nobody reads.
    SELECT pg_logical_emit_message(true, 'parallel_apply', '')
$$;
REVOKE ALL ON FUNCTION parallel_apply.send_signed(text, text) FROM PUBLIC;

-- Whether a transaction is in progress. The catalog keeps ids of before the last wraparound, without their epoch: with
-- that of now they may lie in the future, of which the server raises.
CREATE OR REPLACE FUNCTION parallel_apply.is_in_progress(id xid8) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pg_xact_status(id) = 'in progress';
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN false;
END
$$;
REVOKE ALL ON FUNCTION parallel_apply.is_in_progress(xid8) FROM PUBLIC;

-- The calling transaction's subtransactions (savepoints, blocks with EXCEPTION) that have altered what a message may tell
-- of: the catalog names them where a message names their transaction. What is visible and in progress is our own. An id
-- without its epoch is one of the two thousand million behind the transaction's.
CREATE OR REPLACE FUNCTION parallel_apply.subtransactions() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(entry.writer::text, ' ')
    FROM (
        SELECT xmin FROM pg_enum WHERE age(xmin) < 0
        UNION
        SELECT xmin FROM pg_inherits WHERE age(xmin) < 0
        UNION
        SELECT xmin FROM pg_attribute WHERE age(xmin) < 0
    ) AS entry (writer)
    CROSS JOIN (SELECT pg_current_xact_id()::text::bigint) AS own (id)
    CROSS JOIN LATERAL (SELECT (entry.writer::text::bigint - own.id) & 4294967295) AS behind (count)
    WHERE CASE
        WHEN behind.count BETWEEN 1 AND 2147483647
        THEN parallel_apply.is_in_progress((own.id + behind.count)::text::xid8)
        ELSE false
    END
$$;
REVOKE ALL ON FUNCTION parallel_apply.subtransactions() FROM PUBLIC;

-- What a statement says depends on the session: which tables its names mean, and what it makes of times, dates, intervals,
-- bytes and numbers as texts. So the schemas of the caller's search path go along, and those of its settings that are not the target's.
-- The path is an argument's default, which is evaluated where the call is: in here our own is in force. Whoever names
-- another one gains nothing, since a statement may set it as well. The body is read under the caller's settings, so no
-- plain string of it has a backslash.
CREATE OR REPLACE FUNCTION parallel_apply.send_ddl(statement text, path name[] DEFAULT pg_catalog.current_schemas(false))
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT FROM parallel_apply.send_signed('parallel_apply.subtransactions', parallel_apply.subtransactions());
    SELECT FROM parallel_apply.send_signed('parallel_apply.ddl', format('SET LOCAL search_path = %s; ', coalesce(
        (
            SELECT string_agg(
                format('"%s"', replace(regexp_replace(p.schema, '^pg_temp_[0-9]+$', 'pg_temp'), '"', '""')), ', '
                ORDER BY p.number
            )
            FROM unnest(path) WITH ORDINALITY AS p (schema, number)
        ),
        '"pg_catalog"'
    )) || coalesce(
        (
            SELECT string_agg(format('SET LOCAL %s = %L; ', name, current_setting(name)), '' ORDER BY name)
            FROM (
                VALUES
                    ('array_nulls', 'on'), ('bytea_output', 'hex'), ('datestyle', 'ISO, YMD'), ('extra_float_digits', '3'),
                    ('intervalstyle', 'postgres'), ('standard_conforming_strings', 'on'), ('timezone', 'UTC'),
                    ('transform_null_equals', 'off'), ('xmloption', 'content')
            ) AS s (name, usual)
            WHERE current_setting(name) <> usual
                -- Above zero all of them say the same.
                AND CASE WHEN name = 'extra_float_digits' THEN current_setting(name)::int <= 0 ELSE true END
        ),
        ''
    ) || statement)
$$;
REVOKE ALL ON FUNCTION parallel_apply.send_ddl(text, name[]) FROM PUBLIC;
COMMENT ON FUNCTION parallel_apply.send_ddl(text, name[]) IS
    'Sends SQL to the targets that follow this database, in the place of the calling transaction.';

-- An earlier version's, which knew no path: whoever could call it may call this one.
DO $$
DECLARE
    former CONSTANT regprocedure := pg_catalog.to_regprocedure('parallel_apply.send_ddl(text)');
    may record;
BEGIN
    FOR may IN
        SELECT
            CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE pg_catalog.quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS role,
            CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS granting
        FROM pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) AS a
        WHERE p.oid = former AND a.privilege_type = 'EXECUTE' AND a.grantee <> p.proowner
    LOOP
        EXECUTE pg_catalog.format('GRANT EXECUTE ON FUNCTION parallel_apply.send_ddl(text, name[]) TO %s%s', may.role, may.granting);
    END LOOP;
END
$$;
DROP FUNCTION IF EXISTS parallel_apply.send_ddl(text);
