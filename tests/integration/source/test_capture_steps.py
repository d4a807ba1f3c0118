"""Capture step by step: what becomes durable when, what a crash leaves, and what the slot keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.log.writer import DirectoryLogWriter
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.pipeline.source.postgres.slot import reading
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import Slot, SlotState
from tests.integration.source.conftest import EVERYTHING, Scene, never
from tests.support.variants import gated


@gated
def test_a_large_transaction_streams_in_small_batches(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    append = DirectoryLogWriter.append

    def counted(writer: DirectoryLogWriter, rows: Any, transactions: Any) -> None:
        sizes.append(rows.num_rows)
        append(writer, rows, transactions)

    monkeypatch.setattr(DirectoryLogWriter, "append", counted)
    scene.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    scene.source().prepare()
    scene.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 100000) g")
    (step,) = scene.capture(max_changes=10, batch_bytes=100_000)[:1]
    assert (step.row_count, step.transaction_count) == (100_000, 1)
    assert sum(sizes) == 100_000
    assert max(sizes) < 10_000
    transactions = scene.transactions()
    assert transactions.column("row_count").to_pylist() == [100_000]
    assert transactions.column("byte_count").to_pylist() == [
        scene.value("SELECT sum(length(id::text) + 1 + length(v)) FROM t")
    ]


@gated
def test_a_table_is_asked_for_once_whatever_number_of_its_partitions_is_written_to(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = reading.shapes

    def counted(connection: psycopg.Connection[Any], oids: Sequence[int]) -> Any:
        asked.extend(oids)
        return ask(connection, oids)

    monkeypatch.setattr(reading, "shapes", counted)
    scene.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        *(f"CREATE TABLE t_{n} PARTITION OF t FOR VALUES FROM ({n}) TO ({n + 1})" for n in range(20)),
    )
    scene.source().prepare()
    scene.execute(
        "INSERT INTO t SELECT g FROM generate_series(0, 19) g",
        "ALTER TABLE t ADD w int",
        "INSERT INTO t (id) SELECT g FROM generate_series(10, 19) g ON CONFLICT (id) DO UPDATE SET w = 1",
    )
    scene.capture(max_changes=EVERYTHING)
    assert len([row for row in scene.rows() if row["operation"] == "I"]) == 20
    # Once more as each definition is new to the log.
    assert len(asked) <= 4


@gated
def test_steps_end_between_transactions_at_about_the_asked_size(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(*(f"INSERT INTO t VALUES ({n * 2}), ({n * 2 + 1})" for n in range(10)))
    steps = scene.capture(max_changes=6)
    assert [step.first_seqno for step in steps if step.first_seqno is not None][:2] == [0, 2]
    assert sum(step.row_count for step in steps) == 20
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    assert [row["key"] for row in scene.rows()] == [str(n) for n in range(20)]


def test_one_read_becomes_durable_step_by_step(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(*(f"INSERT INTO t VALUES ({n * 2}), ({n * 2 + 1})" for n in range(10)))
    source = scene.source(batch_bytes=500)
    steps = []
    for step in source.capture(source.offset(), max_changes=EVERYTHING, step_changes=6, cancelled=never):
        assert scene.state().last_seqno == step.last_seqno
        steps.append(step)
    assert len(steps) > 3
    assert [step.first_seqno for step in steps if step.transaction_count] == sorted(
        {step.last_seqno - step.transaction_count + 1 for step in steps if step.transaction_count}
    )
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    assert [row["key"] for row in scene.rows()] == [str(n) for n in range(20)]


def test_a_read_that_is_closed_between_steps_keeps_what_they_brought(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(*(f"INSERT INTO t VALUES ({n})" for n in range(10)))
    source = scene.source(batch_bytes=100)
    with closing(source.capture(source.offset(), max_changes=EVERYTHING, step_changes=3, cancelled=never)) as steps:
        assert next(steps).last_seqno == 0
        assert next(steps).last_seqno == 1
    scene.capture()
    assert [row["key"] for row in scene.rows()] == [str(n) for n in range(10)]


def test_a_source_without_followed_changes_is_captured_to_its_end(scene: Scene) -> None:
    scene.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE SCHEMA unfollowed", "CREATE TABLE unfollowed.t (a int)"
    )
    scene.source().prepare()
    scene.execute("INSERT INTO unfollowed.t SELECT generate_series(1, 100)")
    source = scene.source()
    until_offset = source.offset()
    (step,) = source.capture(until_offset, max_changes=1000, cancelled=never)
    assert step.done
    assert step.captured_offset >= until_offset
    assert step.transaction_count == 0
    # The slot itself stays where the log resumes, until there is much WAL behind that: see test_source_goes_back.
    query = f"SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = '{scene.slot}'"
    assert scene.value(query) == scene.state().place.release_offset


def test_what_is_captured_is_not_read_again(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = scene.source()
    source.prepare()
    scene.execute("INSERT INTO t SELECT generate_series(1, 20000)")
    scene.capture()
    scene.capture()
    state = source._slot.state()
    assert state is not None
    assert state.reread_bytes < 10_000


def test_a_step_is_not_smaller_than_what_is_read_again_to_reach_it() -> None:
    def steps(reread_bytes: int) -> int:
        state = SlotState(
            plugin=None,
            database=None,
            is_elsewhere=False,
            active_pid=None,
            wal_status=None,
            is_two_phase=False,
            confirmed_lsn=0,
            reread_bytes=reread_bytes,
        )
        return state.read_changes(1000)

    assert steps(2**20) == 1000
    assert steps(160 * 10**6) == 10**6


def test_a_long_run_of_messages_of_others_is_passed(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(
        "SELECT pg_logical_emit_message(false, 'beat', 'x') FROM generate_series(1, 50)", "INSERT INTO t VALUES (1)"
    )
    scene.capture(max_changes=5)
    assert scene.shown("operation", "key") == [("I", "1")]


def test_has_changes_sees_only_what_is_followed(scene: Scene) -> None:
    scene.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE SCHEMA unfollowed", "CREATE TABLE unfollowed.t (a int)"
    )
    source = scene.source()
    source.prepare()

    def has_changes() -> bool:
        return source.has_changes(scene.state().place)

    assert not has_changes()
    scene.execute(
        "INSERT INTO unfollowed.t VALUES (1)",
        "SELECT pg_logical_emit_message(false, 'beat', 'x')",
        "SELECT pg_logical_emit_message(true, 'other', 'x')",
    )
    assert not has_changes()
    scene.execute("SELECT pg_logical_emit_message(true, 'parallel_apply.ddl', 'SELECT 1')")
    assert has_changes()
    scene.capture()
    assert not has_changes()
    scene.execute("INSERT INTO t VALUES (1)")
    assert has_changes()


@gated
def test_commits_that_did_not_wait_for_the_disk_are_below_the_current_lsn(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    for number in range(5):
        scene.execute("SET synchronous_commit = off", f"INSERT INTO t VALUES ({number})")
        scene.capture()
        assert scene.state().last_seqno == number


@gated
def test_a_cancelled_step_moves_nothing(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute("INSERT INTO t SELECT generate_series(1, 20000)")
    before = scene.state()
    source = scene.source(batch_bytes=10_000)
    answers = iter([False, False])
    (step,) = source.capture(source.offset(), max_changes=10, cancelled=lambda: next(answers, True))
    assert (step.done, step.row_count, step.captured_offset) == (False, 0, before.captured_offset)
    assert scene.state() == before
    (step,) = source.capture(source.offset(), max_changes=EVERYTHING, cancelled=never)
    assert step.row_count == 20_000


class Crashed(Exception):
    """Stands for the end of the process."""


@gated
@pytest.mark.parametrize("point", ["append", "before commit", "after commit", "before advance", "after advance"])
def test_a_crash_at_any_line_loses_nothing_and_repeats_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    scene.source().prepare()
    scene.execute("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'")
    owner, name = {
        "append": (DirectoryLogWriter, "append"),
        "before commit": (DirectoryLogWriter, "commit"),
        "after commit": (DirectoryLogWriter, "commit"),
        "before advance": (Slot, "advance"),
        "after advance": (Slot, "advance"),
    }[point]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crashing(getattr(owner, name), before=not point.startswith("after")))
        with pytest.raises(Crashed):
            scene.capture(max_changes=1)
    scene.execute("INSERT INTO t VALUES (2, 'c')")
    scene.capture(max_changes=1)
    scene.capture()
    assert scene.shown("seqno", "operation", "key") == [(0, "I", "1"), (1, "U", "1"), (2, "I", "2")]


def crashing(function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """Ends the process before or after a step's last call of it: `advance` is called once before there is anything."""

    def call(self: Any, *arguments: Any) -> Any:
        is_first_advance = function.__name__ == "advance" and self.state().confirmed_lsn == arguments[0].release_offset
        if before and not is_first_advance:
            raise Crashed
        result = function(self, *arguments)
        if not is_first_advance:
            raise Crashed
        return result

    return call


def test_a_slot_in_use_elsewhere_is_a_reason_to_try_again(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = scene.source()
    source.prepare()
    scene.execute("INSERT INTO t VALUES (1)")
    session = Session(source._session._endpoint, application_name="another")
    with closing(session.replication()) as other:
        other.pgconn.exec_(
            f"START_REPLICATION SLOT {scene.slot} LOGICAL 0/0 "
            f"(proto_version '1', publication_names '{scene.slot}')".encode()
        )
        with pytest.raises(Unavailable, match="is in use by process"):
            list(source.capture(source.offset(), max_changes=1, cancelled=never))


def test_a_server_whose_wal_ends_below_the_bound_is_waited_for(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = scene.source()
    source.prepare()
    with pytest.raises(Unavailable, match=r"the run is to read it up to .* the last transaction that the log has"):
        list(source.capture(source.offset() + 2**40, max_changes=1, cancelled=never))
