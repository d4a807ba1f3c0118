"""Serial units, exact replay and checks on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import LogError, OwnershipLost, PlanError, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.expectation import Expectation, require_applicable
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.steps import Merge, Replay, Statement, Truncate
from tests.integration.target.conftest import Scene
from tests.support.log_rows import Row, in_order
from tests.support.variants import gated

AddTable = Callable[..., Relation]


@pytest.fixture
def filled(scene: Scene, accounts: Relation) -> Scene:
    """Keys 1, 2 and 3 in a pipeline of two channels, both at seqno 0."""
    scene.start(channels=2)
    for channel in (0, 1):
        scene.target.take(channel, generation=scene.generation, token="claim1")
        scene.commit(scene.stage(scene.unit(0, channel=channel), []))
    scene.run("INSERT INTO accounts SELECT n, 0, 'note' FROM generate_series(1, 3) n")
    return scene


def serial(scene: Scene) -> Unit:
    unit = scene.unit(1, after=0, channel=None, token="serial")
    scene.target.take(None, generation=scene.generation, token="serial")
    return unit


def rows_of(scene: Scene, *rows: Row) -> Callable[[], Iterator[pa.RecordBatch]]:
    return lambda: in_order(scene.relations, rows)


@gated
def test_the_steps_of_a_serial_unit_run_in_order_and_move_all_positions(filled: Scene) -> None:
    unit = serial(filled)
    staged = filled.stage(unit, [Row(seqno=1, operation="I", values=(str(n), "1", "x")) for n in range(5)])
    steps = [
        Truncate(relation_ids=(1,), restart_identity=True),
        Merge(staged),
        Statement(
            text="ALTER TABLE accounts ADD extra int DEFAULT 7; ALTER TABLE accounts ADD odd text DEFAULT ';''$$'"
        ),
        Replay(rows_of(filled, Row(seqno=1, operation="D", values=("4", None, None)))),
    ]
    filled.target.commit(unit, steps)
    assert filled.run("SELECT * FROM accounts ORDER BY id") == [(n, 1, "x", 7, ";'$$") for n in range(4)]
    assert filled.seqnos() == [1, 1]
    filled.target.commit(unit, steps)
    assert filled.run("SELECT count(*) FROM accounts") == [(4,)]
    assert filled.staging() == []


def test_a_failing_step_undoes_those_before_it(filled: Scene) -> None:
    steps = [Truncate(relation_ids=(1,)), Statement(text="DROP TABLE nowhere")]
    with pytest.raises(TargetError, match="the target refuses the DDL: DROP TABLE nowhere"):
        filled.target.commit(serial(filled), steps)
    assert filled.run("SELECT count(*) FROM accounts") == [(3,)]
    assert filled.seqnos() == [0, 0]


@gated
@pytest.mark.parametrize("text", ["COMMIT", "VACUUM accounts", "CREATE INDEX CONCURRENTLY i ON accounts (note)"])
def test_a_statement_that_cannot_run_in_a_transaction_is_refused(filled: Scene, text: str) -> None:
    with pytest.raises(PlanError, match="cannot run this in a transaction"):
        filled.target.commit(serial(filled), [Truncate(relation_ids=(1,)), Statement(text=text)])
    assert filled.run("SELECT count(*) FROM accounts") == [(3,)]


@gated
def test_settings_of_a_statement_do_not_outlive_it(filled: Scene) -> None:
    filled.target.commit(serial(filled), [Statement(text="SET DateStyle = 'SQL, DMY'")])
    filled.target.take(0, generation=filled.generation, token="claim2")
    unit = filled.unit(2, after=1, token="claim2")
    row = Row(seqno=2, operation="U", values=("1", "1", "x"))
    filled.target.commit(unit, [Replay(rows_of(filled, row))])
    assert filled.seqnos() == [2, 1]


@gated
def test_a_serial_unit_needs_every_channel(filled: Scene) -> None:
    unit = serial(filled)
    filled.another().target.take(1, generation=filled.generation, token="thief")
    with pytest.raises(OwnershipLost):
        filled.target.commit(unit, [Truncate(relation_ids=(1,))])
    assert filled.run("SELECT count(*) FROM accounts") == [(3,)]


def test_several_tables_are_truncated_together(filled: Scene, add_table: AddTable) -> None:
    filled.run("CREATE TABLE child (id int PRIMARY KEY, account int REFERENCES accounts)")
    filled.run("INSERT INTO child VALUES (1, 1)")
    add_table(2, "child", "id account", key="id")
    filled.target.commit(serial(filled), [Truncate(relation_ids=(1, 2))])
    assert filled.run("SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM child)") == [(0, 0)]


def test_replay_applies_every_change_in_source_order(scene: Scene, accounts: Relation) -> None:
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    scene.run("INSERT INTO accounts VALUES (1, 0, 'one'), (2, 0, 'two')")
    rows = [
        Row(seqno=1, fragno=0, operation="I", values=("9", None, "nine\\N")),
        Row(seqno=1, fragno=1, operation="D", values=("9", None, None)),
        Row(seqno=1, fragno=2, operation="X", values=("2", None, None)),
        Row(seqno=1, fragno=3, operation="K", values=("3", "5", None), unsent=(2,), old_key=("2",)),
        Row(seqno=2, fragno=0, operation="U", values=("1", "6", None), unsent=(2,)),
        Row(seqno=2, fragno=1, operation="U", values=("3", "7", "three")),
        Row(seqno=2, fragno=2, operation="U", values=("3", "8", None), unsent=(2,)),
    ]
    unit = scene.unit(2)
    scene.target.commit(unit, [Replay(rows_of(scene, *rows))])
    scene.target.commit(unit, [Replay(rows_of(scene, *rows))])
    assert scene.run("SELECT * FROM accounts ORDER BY id") == [(1, 6, "one"), (3, 8, "three")]
    assert scene.seqnos() == [2]


@gated
@pytest.mark.parametrize("way", ["merge", "replay"])
def test_unique_values_are_swapped_by_a_merge_and_by_a_replay(scene: Scene, add_table: AddTable, way: str) -> None:
    scene.run("CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    add_table(1, "t", "id v", key="id")
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    rows = [
        Row(seqno=1, fragno=0, operation="U", values=("1", "tmp")),
        Row(seqno=1, fragno=1, operation="U", values=("2", "a")),
        Row(seqno=1, fragno=2, operation="U", values=("1", "b")),
    ]
    unit = scene.unit(1)
    if way == "merge":
        scene.commit(scene.stage(unit, rows))
    else:
        scene.target.commit(unit, [Replay(rows_of(scene, *rows))])
    assert scene.run("SELECT * FROM t ORDER BY id") == [(1, "b"), (2, "a")]


@gated
@pytest.mark.parametrize("operation", ["U", "D", "K"])
def test_replay_names_the_key_of_a_missing_row(scene: Scene, accounts: Relation, operation: str) -> None:
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    rows = [
        Row(seqno=0, operation="I", values=("1", "1", "x")),
        Row(seqno=1, operation=operation, values=("77", "1", "x"), old_key=("77",) if operation == "K" else None),
    ]
    with pytest.raises(TargetError, match="id=77") as caught:
        scene.target.commit(scene.unit(1), [Replay(rows_of(scene, *rows))])
    assert (caught.value.table, caught.value.seqno) == ("public.accounts", 1)
    assert scene.run("SELECT count(*) FROM accounts") == [(0,)]


def test_replay_names_the_change_that_the_target_refuses(scene: Scene, accounts: Relation) -> None:
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    rows = [Row(seqno=n, operation="I", values=(str(n % 5), "1", "x")) for n in range(9)]
    with pytest.raises(TargetError, match=r"\(id\) already exists.*row id=0") as caught:
        scene.target.commit(scene.unit(8), [Replay(rows_of(scene, *rows))])
    assert (caught.value.table, caught.value.seqno) == ("public.accounts", 5)
    truncate = Replay(rows_of(scene, replace(rows[0], operation="T")))
    with pytest.raises(LogError, match="operation T"):
        scene.target.commit(scene.unit(8), [truncate])


def require(target: Target, tables: Iterable[Relation], *, channels: int = 1, are_empty: bool = False) -> None:
    expected = Expectation(channels=channels, tables=tuple(tables), are_empty=are_empty)
    require_applicable(target.findings(expected), op="check")


def test_check_accepts_what_can_be_applied(scene: Scene, add_table: AddTable) -> None:
    scene.run("CREATE TABLE t (id int PRIMARY KEY, v text, extra int NOT NULL DEFAULT 1, UNIQUE (id, v))")
    scene.run("CREATE TABLE h (v text)")
    add_table(1, "t", "id v", key="id")
    add_table(2, "h", "v")
    require(scene.target, scene.relations.values(), channels=8, are_empty=True)


def test_check_lists_all_findings_in_one_error(scene: Scene, add_table: AddTable) -> None:
    scene.run(
        """CREATE TABLE parent (id int PRIMARY KEY);
        CREATE TABLE child (
            id int PRIMARY KEY, parent int REFERENCES parent, u int UNIQUE);
        CREATE TABLE keyless (id int, must int NOT NULL);
        INSERT INTO parent VALUES (1)"""
    )
    add_table(1, "absent", "id", key="id")
    add_table(2, "child", "id parent u gone", key="id")
    add_table(3, "keyless", "id", key="id")
    add_table(5, "parent", "id", key="id")
    with pytest.raises(TargetError) as caught:
        require(scene.target, scene.relations.values(), channels=2, are_empty=True)
    text = str(caught.value)
    for expected in (
        "public.absent is missing",
        "public.child lacks the column gone",
        "public.keyless demands a value for the column must",
        "public.keyless has no unique index over exactly the source's key (id)",
        "public.parent has rows, where the first run is to find none",
    ):
        assert expected in text
    require(scene.target, [scene.relations[5]])


def test_check_names_missing_privileges(scene: Scene, add_table: AddTable) -> None:
    scene.run("CREATE TABLE t (id int PRIMARY KEY); CREATE ROLE reader LOGIN; GRANT SELECT, INSERT ON t TO reader")
    scene.run("CREATE TABLE unreadable AS SELECT 1 AS id; ALTER TABLE unreadable ADD PRIMARY KEY (id)")
    add_table(1, "t", "id", key="id")
    add_table(2, "unreadable", "id", key="id")
    scene.dsn = psycopg.conninfo.make_conninfo(scene.dsn, user="reader")
    try:
        with pytest.raises(TargetError, match=r"public\.t: the role has no privilege DELETE, TRUNCATE, UPDATE"):
            require(scene.another().target, scene.relations.values(), are_empty=True)
    finally:
        scene.opened[-1].close()
        scene.dsn = psycopg.conninfo.make_conninfo(scene.dsn, user="postgres")
        scene.run("DROP OWNED BY reader; DROP ROLE reader")
