"""DDL that was sent about a table before its copy: at its place in the log the copy has done it, and it is passed over
where it is about that table alone.
"""

from __future__ import annotations

import logging

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.copy.recopying import again, change, require_green_and_equal, rig_of_two_tables  # noqa: F401  # a fixture
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated

NEW = (
    "CREATE TABLE x (id integer PRIMARY KEY, n integer, u_id integer REFERENCES u)",
    "INSERT INTO x VALUES (1, 1, 1)",
    "COMMENT ON TABLE x IS 'new'",
    "CREATE UNIQUE INDEX x_n ON x (n)",
    "INSERT INTO x VALUES (2, 2, 2)",
    "ALTER TABLE x ADD c text NOT NULL DEFAULT 'older', ALTER n TYPE bigint USING n * 10",
    "CREATE TABLE x_y (x_id integer REFERENCES x, n integer, PRIMARY KEY (x_id, n)) PARTITION BY RANGE (n)",
    "CREATE TABLE x_y_1 PARTITION OF x_y FOR VALUES FROM (1) TO (10)",
    "INSERT INTO x_y VALUES (1, 1)",
)


def sent(*statements: str) -> list[str]:
    """A migration that sends each of its statements, but those that write rows."""
    rows = ("INSERT", "UPDATE", "DELETE")
    return [part for one in statements for part in ((one,) if one.startswith(rows) else (one, ddl(one)))]


def begun(rig: Rig) -> Rig:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    require_green_and_equal(rig)
    return rig


def without_trigger(rig: Rig) -> None:
    for (name,) in rig.rows("SELECT evtname FROM pg_event_trigger", side="source"):
        rig.write(f"DROP EVENT TRIGGER {name}")


@pytest.mark.parametrize("is_told", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_new_table_that_was_sent_and_has_rows_needs_one_copy(
    rig: Rig, *, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rig = begun(rig)
    if not is_told:
        without_trigger(rig)
    change(rig, "before")
    rig.transaction(*sent(*NEW))
    rig.transaction(*sent("ALTER TABLE x ADD d integer", "ALTER TABLE u ADD w integer", "UPDATE u SET w = 1"))
    rig.transaction(*sent("ALTER TABLE x RENAME d TO e", "DROP TABLE x_y", *NEW[-3:-1]))
    rig.write("INSERT INTO x_y VALUES (2, 2)", "INSERT INTO x VALUES (3, 3, 3, 'later', 3)")
    with pytest.raises(FatalError, match=r"new tables with rows.*public\.x, public\.x_y"):
        rig.run()
    again(rig, "x", "x_y")
    rig.transaction(*sent("ALTER TABLE x ADD f integer DEFAULT 6", "CREATE INDEX x_f ON x (f)", "DELETE FROM x_y"))
    with caplog.at_level(logging.WARNING):
        require_green_and_equal(rig)
    assert "passed over, of which nothing is left to do, since public.x was copied anew behind it" in caplog.text
    assert rig.rows("SELECT count(*) FROM pg_indexes WHERE indexname IN ('x_n', 'x_f')") == [(2,)]


def test_an_enum_of_a_new_table_that_was_made_for_its_copy_is_not_made_again(rig: Rig) -> None:
    rig = begun(rig)
    rig.transaction(
        *sent(
            "CREATE TYPE kind AS ENUM ('a', 'b')",
            "CREATE TABLE x (id integer PRIMARY KEY, k kind, ks kind[])",
            "INSERT INTO x VALUES (1, 'a', '{a,b}')",
            "ALTER TABLE u ADD w integer",
        )
    )
    rig.transaction(*sent("ALTER TYPE kind ADD VALUE 'c'", "COMMENT ON TYPE kind IS 'kinds'"))
    rig.transaction(*sent("INSERT INTO x VALUES (2, 'c', NULL)", "ALTER TABLE t ADD k kind", "UPDATE t SET k = 'c'"))
    execute(rig.target_dsn, "CREATE TYPE kind AS ENUM ('a', 'b', 'c')")
    again(rig, "x")
    rig.transaction(*sent("ALTER TYPE kind ADD VALUE 'd'"))
    rig.write("INSERT INTO x VALUES (3, 'd', NULL)")
    require_green_and_equal(rig)


@gated
def test_an_enum_that_others_use_is_a_person_s_to_judge(rig: Rig) -> None:
    rig = begun(rig)
    rig.transaction(
        *sent(
            "CREATE TYPE kind AS ENUM ('a')",
            "CREATE TABLE x (id integer PRIMARY KEY, k kind)",
            "INSERT INTO x VALUES (1, 'a')",
        )
    )
    execute(rig.target_dsn, "CREATE TYPE kind AS ENUM ('a')", "ALTER TABLE u ADD k kind")
    again(rig, "x")
    with pytest.raises(FatalError, match='type "kind" already exists'):
        rig.run()


@gated
def test_a_label_that_a_person_has_made_need_not_be_added(rig: Rig) -> None:
    rig.both("CREATE TYPE kind AS ENUM ('a')", "ALTER TABLE u ADD k kind")
    rig = begun(rig)
    execute(rig.target_dsn, "ALTER TYPE kind ADD VALUE 'b'")
    rig.transaction(*sent("ALTER TYPE kind ADD VALUE 'b'"))
    rig.write("UPDATE u SET k = 'b'")
    require_green_and_equal(rig)
    rig.transaction(ddl("ALTER TYPE kind RENAME VALUE 'gone' TO 'c'"))
    with pytest.raises(FatalError, match="is not an existing enum label"):
        rig.run()


def test_what_the_target_has_not_need_not_be_dropped(rig: Rig) -> None:
    rig = begun(rig)
    rig.write("CREATE INDEX t_v ON t (v)", "ALTER TABLE u ADD CONSTRAINT u_v CHECK (v <> '')")
    rig.write("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    rig.write("CREATE TRIGGER f BEFORE INSERT ON u FOR EACH ROW EXECUTE FUNCTION f()")
    drops = ("DROP INDEX t_v", "ALTER TABLE u DROP CONSTRAINT u_v", "DROP TRIGGER f ON u", "DROP FUNCTION f()")
    rig.transaction(*sent(*drops, "ALTER TABLE t ADD w integer", "UPDATE t SET w = id"))
    require_green_and_equal(rig)
    rig.transaction(*sent("ALTER TABLE u ADD w integer, ADD CONSTRAINT u_v CHECK (v <> '')", "UPDATE u SET w = id"))
    require_green_and_equal(rig)
    rig.transaction("ALTER TABLE u DROP w", ddl("ALTER TABLE u DROP CONSTRAINT gone, DROP w"))
    with pytest.raises(FatalError, match='"gone" of relation "u" does not exist'):
        rig.run()


def test_what_else_a_text_does_is_not_passed_over(rig: Rig) -> None:
    rig = begun(rig)
    beside = "ALTER TABLE u ADD w integer DEFAULT 7"
    rig.transaction(*NEW[:2], beside, ddl(f"{NEW[0]}; {beside}"))
    again(rig, "x")
    with pytest.raises(FatalError, match='relation "x" already exists') as refused:
        rig.run()
    execute(rig.target_dsn, beside)
    skip_as_the_hint_says(rig, refused.value)
    require_green_and_equal(rig)


@gated
def test_a_statement_that_may_mean_a_table_of_another_schema_is_not_passed_over(rig: Rig) -> None:
    rig = begun(rig)
    rig.both("CREATE SCHEMA tenant")
    statement = "ALTER TABLE t ALTER v TYPE text USING upper(v)"
    rig.transaction("SET search_path = tenant, public", *sent(statement))
    rig.write("CREATE SCHEMA IF NOT EXISTS tenant", "CREATE TABLE tenant.t (id integer PRIMARY KEY, v text)")
    rig.write("INSERT INTO tenant.t VALUES (1, 'new')")
    rig = rig.having(tables=TablePatterns(include=("*.*",)))
    with pytest.raises(FatalError, match=r"tenant\.t"):
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("tenant", "t")], report=lambda _: None)
    with pytest.raises(FatalError, match=r"before tenant\.t was copied anew"):
        rig.run()


def test_a_statement_about_a_table_that_had_the_name_before_is_not_passed_over(rig: Rig) -> None:
    rig = begun(rig)
    rig.write("ALTER TABLE t RENAME TO x")
    rig.transaction(*sent("ALTER TABLE x ALTER v TYPE text USING upper(v)"))
    rig.write("ALTER TABLE x RENAME TO t")
    rig.transaction("CREATE TABLE x (id integer PRIMARY KEY, v text)", "INSERT INTO x VALUES (1, 'new')")
    again(rig, "x")
    with pytest.raises(FatalError) as refused:
        rig.run()
    assert "public.t" in str(refused.value)
    again(rig, "t", "x")
    with pytest.raises(FatalError) as refused:
        rig.run()
    skip_as_the_hint_says(rig, refused.value)
    require_green_and_equal(rig)


@gated
def test_a_statement_about_a_table_with_heirs_at_the_target_is_not_passed_over(rig: Rig) -> None:
    rig = begun(rig)
    rig.both("CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (t)")
    require_green_and_equal(rig)
    rig.write("INSERT INTO heir VALUES (1000, 'heir')")
    rig.transaction(*sent("ALTER TABLE t ALTER v TYPE text USING upper(v)"))
    again(rig, "t")
    with pytest.raises(FatalError, match=r"before public\.t was copied anew"):
        rig.run()


@gated
def test_a_type_of_a_copy_that_is_made_anew_keeps_its_name(rig: Rig) -> None:
    rig.both("CREATE TYPE kind AS ENUM ('a', 'b')", "ALTER TABLE t ADD k kind DEFAULT 'a'")
    rig = begun(rig)
    rig.transaction(
        *sent(
            "CREATE TYPE kind_new AS ENUM ('a', 'b', 'c')",
            "ALTER TABLE t ALTER k DROP DEFAULT, ALTER k TYPE kind_new USING k::text::kind_new",
            "ALTER TYPE kind RENAME TO kind_old",
            "ALTER TYPE kind_new RENAME TO kind",
            "UPDATE t SET k = 'c' WHERE id = 1",
        ),
    )
    execute(rig.target_dsn, "ALTER TYPE kind ADD VALUE 'c'")
    again(rig, "t")
    with pytest.raises(FatalError, match=r"before public\.t was copied anew.*ALTER TYPE kind RENAME TO") as refused:
        rig.run()
    skip_as_the_hint_says(rig, refused.value)
    rig.transaction(*sent("ALTER TYPE kind RENAME VALUE 'b' TO 'd'"))
    require_green_and_equal(rig)


@gated
def test_a_type_of_a_copy_gets_the_name_that_it_has_at_the_source(rig: Rig) -> None:
    rig.both("CREATE TYPE kind AS ENUM ('a', 'b')", "ALTER TABLE t ADD k kind", "ALTER TABLE u ADD k kind")
    rig = begun(rig)
    rig.write("UPDATE t SET k = 'a'", "UPDATE u SET k = 'a'")
    require_green_and_equal(rig)
    rig.transaction(*sent("ALTER TYPE kind RENAME TO sort", "UPDATE t SET k = 'b'"))
    again(rig, "t")
    require_green_and_equal(rig)
    rig.transaction(*sent("ALTER TYPE sort ADD VALUE 'c'"))
    rig.write("UPDATE t SET k = 'c'", "UPDATE u SET k = 'c'")
    require_green_and_equal(rig)
