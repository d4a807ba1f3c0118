"""`concerned` reads which tables and types DDL is about alone, and is sure of it."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.target.postgres.redefine.concerned import (
    Concerned,
    Kind,
    concerned,
    is_drop_without_rows,
    is_new_label,
)

PUBLIC = 'SET LOCAL search_path = "public"; '
X = frozenset({Concerned(Kind.TABLE, ("public", "x"))})
NOTHING = frozenset[Concerned]()


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE x (id int)",
        "create table if not exists x (id int, t text DEFAULT 'a); DROP TABLE y; --', n numeric(3, 1)) ;",
        'CREATE TABLE "x" (id int REFERENCES y ON DELETE CASCADE, CHECK (id > 0 AND (id < 9)))',
        "CREATE TABLE public.x (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE x (id int) USING heap WITH (fillfactor = 70) TABLESPACE pg_default",
        "CREATE TABLE x_1 PARTITION OF x FOR VALUES FROM (1) TO (2)",
        "CREATE TABLE s.x_1 PARTITION OF public.x DEFAULT",
        "CREATE INDEX ON x (id)",
        'CREATE UNIQUE INDEX IF NOT EXISTS "i on y" ON ONLY public.x USING btree (lower(t), id) WHERE id > 0',
        "-- a comment; DROP TABLE y\nCOMMENT ON TABLE x /* of x */ IS E'it\\'s; new'",
        "COMMENT ON COLUMN x.id IS NULL",
        "COMMENT ON COLUMN public.x.id IS $$the id$$",
        "COMMENT ON CONSTRAINT c ON x IS ''",
        "ALTER TABLE ONLY x ADD COLUMN n int, DROP m, ALTER COLUMN o TYPE text USING o::text",
        "ALTER TABLE IF EXISTS x ADD CONSTRAINT f FOREIGN KEY (a, b) REFERENCES y (a, b) ON DELETE CASCADE NOT VALID",
        "ALTER TABLE x RENAME a TO b",
        "ALTER TABLE x RENAME CONSTRAINT a TO b",
        "ALTER TABLE x ENABLE ROW LEVEL SECURITY, OWNER TO somebody",
        "DROP TABLE IF EXISTS x",
        "DROP TABLE x; CREATE TABLE x (id int); CREATE INDEX ON x (id)",
        "CREATE OR REPLACE TRIGGER t AFTER INSERT OR UPDATE OF a, b ON x FOR EACH ROW EXECUTE FUNCTION f('on y')",
        "DROP TRIGGER t ON x",
        "CREATE POLICY p ON x FOR SELECT USING (id > 0)",
    ],
)
def test_a_statement_about_one_table_says_which(text: str) -> None:
    assert concerned(PUBLIC + text) == X


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-- nothing",
        "CREATE TABLE x AS SELECT 1",
        "CREATE TABLE x (id) AS SELECT 1",
        "CREATE TABLE x (id int) INHERITS (y)",
        "CREATE TABLE x OF t",
        "CREATE TEMP TABLE x (id int)",
        "CREATE UNLOGGED TABLE x (id int)",
        "CREATE TABLE x (id int) WITH (fillfactor = 70) INHERITS (y)",
        "CREATE TABLE x (id int); CREATE TYPE t AS (a int)",
        "CREATE TABLE x (id int); SELECT f()",
        "CREATE TABLE x (id int",
        "CREATE TABLE d.public.x (id int)",
        "CREATE TABLE pg_temp.x (id int)",
        "CREATE INDEX CONCURRENTLY ON x (id)",
        "CREATE INDEX CONCURRENTLY i ON x (id)",
        "ALTER TABLE x RENAME TO y",
        "ALTER TABLE x SET SCHEMA s",
        "ALTER TABLE x SET UNLOGGED",
        "ALTER TABLE x INHERIT y",
        "ALTER TABLE x NO INHERIT y",
        "ALTER TABLE x ATTACH PARTITION y DEFAULT",
        "ALTER TABLE x DETACH PARTITION y",
        "ALTER TABLE x OF t",
        "ALTER TABLE x ADD n int, INHERIT y",
        "ALTER TABLE x DROP n CASCADE",
        "ALTER TABLE x *  ADD n int",
        "ALTER TABLE ALL IN TABLESPACE a SET TABLESPACE b",
        "DROP TABLE x, y",
        "DROP TABLE x CASCADE",
        "COMMENT ON CONSTRAINT c ON DOMAIN d IS ''",
        "COMMENT ON INDEX i IS ''",
        "DO $$BEGIN CREATE TABLE x (id int); END$$",
        "CREATE RULE r AS ON INSERT TO x DO ALSO DELETE FROM y",
        'CREATE TABLE U&"\\0078" (id int)',
        "CREATE TABLE täble (id int)",
        f"CREATE TABLE {'x' * 64} (id int)",
        "COMMENT ON TABLE x IS /* a /* b */ '; DROP TABLE y' */ 'c'",
        "COMMENT ON TABLE x IS E'a\\''\n'\\'; DROP TABLE y; --'",
        "COMMENT ON TABLE x IS 'unended",
        'COMMENT ON TABLE "x IS NULL',
        "COMMENT ON TABLE x IS $a$ unended $b$",
        "COMMENT ON TABLE x IS $1",
    ],
)
def test_what_may_be_about_more_is_about_anything(text: str) -> None:
    assert concerned(PUBLIC + text) == NOTHING


def test_a_name_without_a_schema_is_in_the_only_schema_of_the_path() -> None:
    text = "ALTER TABLE x ADD n int"
    assert concerned(text) == NOTHING
    assert concerned(f'SET LOCAL search_path = "a, ""b"; {text}') == {(Kind.TABLE, ('a, "b', "x"))}
    for path in ('"a", "public"', '"pg_temp"', '"pg_catalog"', '"public", "pg_temp"'):
        assert concerned(f"SET LOCAL search_path = {path}; {text}") == NOTHING
        assert concerned(f'SET LOCAL search_path = {path}; ALTER TABLE "S"."X y" ADD n int') == {
            (Kind.TABLE, ("S", "X y"))
        }


def test_names_are_those_of_the_server() -> None:
    assert concerned('ALTER TABLE Public.X ADD "n;" int; ALTER TABLE public."X""" DROP n') == {
        (Kind.TABLE, ("public", "x")),
        (Kind.TABLE, ("public", 'X"')),
    }


def test_strings_of_another_syntax_are_not_read() -> None:
    text = "COMMENT ON TABLE x IS 'a'"
    settings = "SET LOCAL timezone = 'it''s'; "
    assert concerned(PUBLIC + settings + text) == X
    assert concerned(f"{PUBLIC}SET LOCAL standard_conforming_strings = 'off'; {text}") == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TYPE x AS ENUM ('a', 'b')",
        "ALTER TYPE public.x ADD VALUE IF NOT EXISTS 'c' BEFORE 'a'",
        "COMMENT ON TYPE x IS 'enum'",
        "DROP TYPE x",
    ],
)
def test_a_statement_about_one_enum_says_which(text: str) -> None:
    assert concerned(PUBLIC + text) == {(Kind.TYPE, ("public", "x"))}


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TYPE x AS (a int)",
        "CREATE TYPE x AS RANGE (SUBTYPE = int)",
        "CREATE TYPE x",
        "ALTER TYPE x RENAME TO y",
        "ALTER TYPE x RENAME VALUE 'a' TO 'b'",
        "ALTER TYPE x SET SCHEMA s",
        "ALTER TYPE x ADD ATTRIBUTE a int",
        "DROP TYPE x CASCADE",
        "DROP TYPE x, y",
    ],
)
def test_other_statements_about_types_are_about_anything(text: str) -> None:
    assert concerned(PUBLIC + text) == NOTHING


@pytest.mark.parametrize(
    "text",
    [
        "DROP INDEX i",
        "DROP INDEX IF EXISTS s.i RESTRICT;",
        "DROP FUNCTION f",
        "DROP FUNCTION public.f (int, text)",
        "DROP TRIGGER t ON x",
        'ALTER TABLE ONLY "x" DROP CONSTRAINT IF EXISTS c',
    ],
)
def test_a_text_that_drops_one_thing_without_rows_is_known(text: str) -> None:
    assert is_drop_without_rows(PUBLIC + text)
    assert is_drop_without_rows(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DROP TABLE x",
        "DROP VIEW v",
        "DROP TYPE t",
        "DROP SCHEMA s",
        "DROP INDEX i, j",
        "DROP INDEX i CASCADE",
        "DROP INDEX CONCURRENTLY i",
        "DROP INDEX i; DROP INDEX j",
        "ALTER TABLE x DROP CONSTRAINT c, ADD d int",
        "ALTER TABLE x DROP CONSTRAINT c CASCADE",
        "ALTER TABLE x DROP c",
        "DROP FUNCTION f () CASCADE",
    ],
)
def test_other_drops_are_not(text: str) -> None:
    assert not is_drop_without_rows(PUBLIC + text)


def test_a_text_that_adds_one_label_is_known() -> None:
    text = "ALTER TYPE x ADD VALUE 'c' AFTER 'b'"
    assert is_new_label(text)
    assert not is_new_label(f"{text}; {text}")
    assert not is_new_label("ALTER TYPE x RENAME VALUE 'c' TO 'd'")
