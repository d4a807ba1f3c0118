"""Servers and tables that are altered while a run is under way: rows arrive exactly, or the run says what was done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_parallel_apply.pipeline.errors import ConfigurationError, TargetError
from airflow_parallel_apply.pipeline.target.mariadb import target as module
from airflow_parallel_apply.router.plan import plan
from tests.support.mariadb_rig import MariaDbRig
from tests.support.variants import gated

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v {text}, f double precision, at {time}{computed})"
SOURCE = TABLE.format(text="text", time="timestamp", computed=", n int GENERATED ALWAYS AS (id * 3) STORED")
TARGET = TABLE.format(text="longtext", time="datetime(6)", computed="")
ROW = "INSERT INTO t VALUES ({}, 'x', 0.123456789, '2026-01-01 00:00:00.123456')"


@pytest.fixture
def rig(maria: MariaDbRig) -> MariaDbRig:
    """One channel, so that a unit with rows is committed once."""
    maria.make([SOURCE], [TARGET])
    return MariaDbRig(rig=maria.rig.having(channels=1, lanes=1), server=maria.server)


@pytest.fixture
def before_commit(rig: MariaDbRig, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Takes a statement, which is run when the next unit is staged, and is about to be committed."""

    def alter(statement: str) -> None:
        run_steps = module.run_steps

        def altered(*given: object) -> None:
            monkeypatch.setattr(module, "run_steps", run_steps)
            rig.server.run(statement, database="test")
            run_steps(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "run_steps", altered)

    return alter


@gated
@pytest.mark.parametrize(
    ("alters", "says", "undoes"),
    [
        (
            "CREATE TRIGGER acts BEFORE INSERT ON t FOR EACH ROW SET NEW.v = 'another'",
            "trigger acts acts on rows",
            "DROP TRIGGER acts",
        ),
        ("ALTER TABLE t MODIFY f float", "is float here", "ALTER TABLE t MODIFY f double"),
        pytest.param(
            "ALTER TABLE t MODIFY at datetime",
            "is datetime here",
            "ALTER TABLE t MODIFY at datetime(6)",
            marks=pytest.mark.long,
        ),
        ("ALTER TABLE t ENGINE = Aria", "t is Aria", "ALTER TABLE t ENGINE = InnoDB"),
        ("ALTER TABLE t ADD n int AS (id * 2)", "column n is computed by both sides", "ALTER TABLE t DROP n"),
    ],
    ids=["trigger", "float", "datetime", "engine", "computed"],
)
def test_a_table_that_is_altered_while_its_rows_are_staged_takes_none_of_them(
    rig: MariaDbRig, before_commit: Callable[[str], None], alters: str, says: str, undoes: str
) -> None:
    rig.rig.prepare()
    rig.rig.write(ROW.format(1))
    before_commit(alters)
    with pytest.raises(TargetError, match=says):
        rig.rig.run("one")
    assert rig.read("SELECT id FROM t") == []
    rig.server.run(undoes, database="test")
    rig.rig.run("one")
    assert rig.rig.comparison().equal


@gated
def test_a_column_that_takes_null_for_a_time_by_now_takes_none(
    rig: MariaDbRig, before_commit: Callable[[str], None]
) -> None:
    source, target = (f"CREATE TABLE z (id int PRIMARY KEY, at {type_})" for type_ in ("timestamptz", "datetime(6)"))
    rig.make([source], [target])
    rig.rig.prepare()
    rig.rig.write("INSERT INTO z VALUES (1, NULL)")
    before_commit("ALTER TABLE z MODIFY at timestamp(6) NOT NULL")
    with pytest.raises(TargetError, match="NULL for another value"):
        rig.rig.run("one")
    assert rig.read("SELECT id FROM z") == []
    rig.server.run("ALTER TABLE z MODIFY at timestamp(6) NULL", database="test")
    rig.rig.run("one")
    assert rig.rig.comparison().equal


def test_a_column_that_keeps_texts_by_now_gets_the_source_s(
    rig: MariaDbRig, before_commit: Callable[[str], None]
) -> None:
    rig.rig.prepare()
    rig.rig.write(ROW.format(1))
    before_commit("ALTER TABLE t MODIFY at longtext, MODIFY f longtext")
    rig.rig.run("one")
    rig.require_equal("SELECT id, v, f, at FROM t", at_source="SELECT id, v, f::text, at::text FROM t")


@gated
def test_a_row_that_is_too_long_for_a_statement_is_told_as_such(rig: MariaDbRig) -> None:
    """A server hangs up on it, which looks like one that went away."""
    rig.rig.prepare()
    rig.server.run("SET GLOBAL max_allowed_packet = 1048576")
    try:
        rig.rig.transaction("TRUNCATE t", "INSERT INTO t VALUES (1, repeat('x', 20000000))")
        with pytest.raises(TargetError, match=r"max_allowed_packet is 1,048,576 \(row id=1\)") as refused:
            rig.rig.run("one")
        assert "SET GLOBAL max_allowed_packet" in str(refused.value)
    finally:
        rig.server.run("SET GLOBAL max_allowed_packet = 67108864")
    rig.rig.run("one")
    assert rig.rig.comparison().equal
    rig.server.run("SET GLOBAL max_allowed_packet = 16777216")


@gated
def test_bytes_that_are_nearly_as_long_as_a_statement_may_be_arrive(maria: MariaDbRig) -> None:
    maria.make(["CREATE TABLE b (id int PRIMARY KEY, v bytea)"], ["CREATE TABLE b (id int PRIMARY KEY, v longblob)"])
    maria.rig.prepare()
    maria.server.run("SET GLOBAL max_allowed_packet = 1048576")
    try:
        maria.rig.transaction("TRUNCATE b", "INSERT INTO b VALUES (1, decode(repeat('fe', 400000), 'hex'))")
        maria.rig.run("one")
    finally:
        maria.server.run("SET GLOBAL max_allowed_packet = 16777216")
    assert maria.rig.comparison().equal


@gated
def test_a_server_that_becomes_read_only_is_told_as_such(rig: MariaDbRig) -> None:
    rig.server.run(
        "CREATE OR REPLACE USER plain@'%'; GRANT ALL ON parallel_apply.* TO plain@'%'; GRANT ALL ON test.* TO plain@'%'"
    )
    pipeline = replace(rig.rig, target_dsn=rig.rig.target_dsn.replace("root@", "plain@"))
    pipeline.prepare()
    pipeline.write(ROW.format(1))
    pipeline.capture("one")
    plan(pipeline.config, pipeline.target)
    opened = pipeline.open("one")
    rig.server.run("SET GLOBAL read_only = ON")
    try:
        with pytest.raises(ConfigurationError, match="read-only") as refused:
            pipeline.close(opened, pipeline.apply(opened))
        assert "Connect to the primary" in str(refused.value)
    finally:
        rig.server.run("SET GLOBAL read_only = OFF")
    pipeline.run("one")
    assert pipeline.comparison().equal
