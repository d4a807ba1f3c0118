"""Columns that somebody renamed, exchanged or made anew at the target, while rows of their names were to come."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.postgres.recopy import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.target.postgres import steps
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

RENAME = ["ALTER TABLE t RENAME a TO z"]
SWAP = ["ALTER TABLE t RENAME a TO x", "ALTER TABLE t RENAME b TO a", "ALTER TABLE t RENAME x TO b"]
CHAIN = ["ALTER TABLE t RENAME a TO z", "ALTER TABLE t RENAME b TO a"]
REPLACED = ["ALTER TABLE t RENAME a TO z", "ALTER TABLE t ADD a text"]
ANEW = ["ALTER TABLE t DROP a", "ALTER TABLE t ADD a text"]
OTHERS = [
    (ddl, statements)
    for statements in (SWAP, RENAME, CHAIN, REPLACED)
    for ddl in DdlPolicy
    if (ddl, statements) not in [(DdlPolicy.SKIP, SWAP), (DdlPolicy.APPLY, CHAIN)]
]


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a text, b text)")
    rig.write("INSERT INTO t SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 5) i")
    rig.run()
    return rig


def followed(rig: Rig) -> list[str]:
    """Run until it is green, and do at the target what each error's hint says first. Returns the errors."""
    told: list[str] = []
    while len(told) < 8:
        try:
            rig.run()
        except FatalError as error:
            told.append(str(error))
            found = re.search(r"(?:\(|Run )(ALTER TABLE .*?)(?:\), then| at the target)", told[-1])
            if found is not None:
                execute(rig.target_dsn, *found.group(1).split("; "))
            if "with ddl=apply, which" in told[-1]:
                rig.having(ddl=DdlPolicy.APPLY).run()
            if found is None or "; then `parallel-apply recopy" in told[-1]:
                recopy(rig)
        else:
            return told
    raise AssertionError(told)


def recopy(rig: Rig) -> None:
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, (rig.rows("TABLE t ORDER BY 1"), rig.rows("TABLE t ORDER BY 1", side="source"))


@pytest.mark.parametrize(
    ("ddl", "statements"),
    [
        (DdlPolicy.SKIP, SWAP),
        pytest.param(DdlPolicy.APPLY, CHAIN, marks=GATED),
        *(pytest.param(ddl, statements, marks=pytest.mark.long) for ddl, statements in OTHERS),
    ],
)
def test_rows_go_to_the_columns_that_had_those_before_whatever_has_their_names(
    rig: Rig, ddl: DdlPolicy, statements: list[str]
) -> None:
    rig = rig.having(ddl=ddl)
    rig.write("INSERT INTO t VALUES (6, 'a6', 'b6')", "UPDATE t SET a = 'u2' WHERE id = 2", *statements)
    rig.write("INSERT INTO t VALUES (11, 'x', 'y')")
    execute(rig.target_dsn, *statements)
    told = followed(rig)
    assert "Give them the names that these rows have" in told[0], told
    assert ddl is not DdlPolicy.APPLY or len(told) == 1, told
    assert not any("run once with ddl=skip" in one for one in told if statements in (SWAP, CHAIN)), told
    assert_equal(rig)
    rig.write("UPDATE t SET id = id + 100")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("ddl", [DdlPolicy.REFUSE, *(pytest.param(one, marks=GATED) for one in ("apply", "skip"))])
def test_an_exchange_is_done_where_it_is_not_and_passed_over_where_it_is(rig: Rig, ddl: str) -> None:
    rig = rig.having(ddl=DdlPolicy(ddl))
    rig.write(*SWAP, "INSERT INTO t VALUES (11, 'x', 'y')")
    told = followed(rig)
    assert len(told) == (ddl != "apply"), told
    assert not told or "run once with ddl=skip" not in told[0], told
    assert_equal(rig)
    rig.write(*SWAP, "INSERT INTO t VALUES (12, 'x', 'y')")
    execute(rig.target_dsn, *SWAP)
    assert followed(rig) == []
    assert_equal(rig)


@gated
def test_rows_of_the_transaction_that_exchanges_columns_are_those_of_the_ones_that_were_exchanged_by_hand(
    rig: Rig,
) -> None:
    rig.transaction("INSERT INTO t VALUES (6, 'a6', 'b6')", *SWAP, "INSERT INTO t VALUES (7, 'a7', 'b7')")
    assert len(followed(rig)) == 1
    assert_equal(rig)


@gated
def test_columns_of_other_types_that_are_exchanged_between_runs_are_told(rig: Rig) -> None:
    rig.both("ALTER TABLE t ADD v text, ADD u integer")
    rig.write("INSERT INTO t VALUES (6)")
    followed(rig)
    swap = [statement.replace(" a", " v").replace(" b", " u") for statement in SWAP]
    execute(rig.target_dsn, *swap)
    rig.write("INSERT INTO t VALUES (11, 'a11', 'b11', '12', 7)")
    assert "u is called v" in followed(rig)[0]
    rig.write(*swap, "INSERT INTO t VALUES (12, 'a12', 'b12', 7, '12')")
    followed(rig)
    assert_equal(rig)


@gated
@pytest.mark.parametrize("how", ["recopy", pytest.param("vouch", marks=GATED), pytest.param("empty", marks=GATED)])
def test_a_column_that_was_made_anew_at_the_target_is_told(rig: Rig, how: str) -> None:
    if how == "vouch":
        execute(rig.target_dsn, "ALTER TABLE t ADD c text", "UPDATE t SET c = a", "ALTER TABLE t DROP a")
        execute(rig.target_dsn, "ALTER TABLE t RENAME c TO a")
    else:
        execute(rig.target_dsn, *ANEW)
    if how == "empty":
        rig.write("TRUNCATE t", "INSERT INTO t VALUES (6, 'a6', 'b6')")
        rig.run()
    else:
        rig.write("INSERT INTO t VALUES (6, 'a6', 'b6')")
        with pytest.raises(
            FatalError, match=r"are gone at the target.*`parallel-apply recopy --pipeline p --table public\.t`"
        ) as red:
            rig.run()
        if how == "vouch":
            vouch = re.search(r"run (UPDATE .*?) at the target", str(red.value))
            assert vouch is not None
            execute(rig.target_dsn, vouch.group(1))
        else:
            recopy(rig)
        rig.run()
    assert_equal(rig)


@gated
def test_a_column_that_the_source_makes_anew_may_be_made_before_at_the_target(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.SKIP)
    rig.write("INSERT INTO t VALUES (6, 'a6', 'b6')")
    rig.capture("rows of before")
    rig.write(*ANEW)
    rig.capture("the change alone")
    rig.write("INSERT INTO t VALUES (7, 'b7', 'a7')")
    execute(rig.target_dsn, *ANEW)
    rig.run()
    assert_equal(rig)


@gated
def test_a_sent_statement_may_give_a_column_another_place(rig: Rig) -> None:
    anew = "; ".join(
        f"ALTER TABLE public.t {action}"
        for action in (
            "ADD c text GENERATED ALWAYS AS (a) STORED",
            "ALTER c DROP EXPRESSION",
            "DROP a",
            "RENAME c TO a",
        )
    )
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.transaction("ALTER TABLE t ALTER a TYPE varchar", rig.ddl(anew))
    rig.write("INSERT INTO t VALUES (6, 'a6', 'b6')", "UPDATE t SET a = 'u'")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("ahead", [("ALTER TABLE t RENAME TO u",), pytest.param((), marks=GATED)])
def test_a_restored_target_counts_its_columns_anew(rig: Rig, ahead: tuple[str, ...]) -> None:
    rig.both("ALTER TABLE t DROP a", "ALTER TABLE t ADD c text")
    rig.write("INSERT INTO t VALUES (6, 'b6', 'c6')")
    followed(rig)
    # As a dump has it: the table is made anew, and what is noted of it is not.
    execute(
        rig.target_dsn,
        "CREATE TABLE dump AS TABLE t",
        "ALTER TABLE dump ADD PRIMARY KEY (id)",
        "DROP TABLE t",
        "ALTER TABLE dump RENAME TO t",
        "UPDATE parallel_apply.applied_table SET target = 't'::regclass",
    )
    rig.write("INSERT INTO t VALUES (7, 'b7', 'c7')", *ahead)
    rig.having(ddl=DdlPolicy.APPLY).run()
    assert_equal(rig)


def test_a_column_that_was_put_aside_at_the_target_stays_when_the_source_drops_it(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    execute(rig.target_dsn, "ALTER TABLE t RENAME a TO a_of_before")
    rig.write("ALTER TABLE t DROP a", "INSERT INTO t VALUES (6, 'b6')")
    rig.run()
    assert_equal(rig)
    assert rig.rows("SELECT a_of_before FROM t WHERE id = 2") == [("a2",)]


@gated
def test_columns_of_a_table_that_came_during_a_run_are_known_when_it_ends(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    made = "CREATE TABLE public.u (id integer PRIMARY KEY, a text, b text)"
    rig.transaction(made, rig.ddl(made))
    rig.prepare()
    rig.write("INSERT INTO u VALUES (1, 'a1', 'b1')")
    rig.run()
    exchange = [statement.replace("TABLE t ", "TABLE u ") for statement in SWAP]
    execute(rig.target_dsn, *exchange)
    rig.write("INSERT INTO u VALUES (2, 'a2', 'b2')")
    with pytest.raises(FatalError, match="have other names at the target"):
        rig.run()
    execute(rig.target_dsn, *exchange)
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_column_that_somebody_makes_anew_while_ddl_runs_is_lost(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE u (id integer PRIMARY KEY)")
    rig.prepare()
    added = "ALTER TABLE u ADD x integer"
    rig.transaction(added, rig.ddl(added), "INSERT INTO u VALUES (2, 2)")
    forget = steps.forget_dropped

    def forgetting(connection: Connection, session: Session) -> None:
        connection.execute("SELECT pg_current_xact_id()")
        execute(rig.target_dsn, *ANEW)
        forget(connection, session)

    monkeypatch.setattr(steps, "forget_dropped", forgetting)
    rig.run()
    rig.write("INSERT INTO t VALUES (6, 'a6', 'b6')")
    (told,) = followed(rig)
    assert "are gone at the target" in told
    assert_equal(rig)
