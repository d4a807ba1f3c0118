"""Runs with data intervals: bounded by the source's commit times, frozen, in order, each transaction once (law 11)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.admin.watch import lease_view, look_for_changes, source_is_past
from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import GapAhead, LeaseBusy, Unavailable
from airflow_parallel_apply.pipeline.ledger.postgres import PostgresLedger
from airflow_parallel_apply.pipeline.ledger.protocol import PipelineState
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.run import preparing
from airflow_parallel_apply.router.plan import plan
from tests.support.rig import Rig
from tests.support.variants import gated, variants

TICK = timedelta(microseconds=1)


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY)")
    made.prepare()
    return made


def clock(rig: Rig) -> datetime:
    ((now,),) = rig.rows("SELECT clock_timestamp()", side="source")
    return now


def insert(rig: Rig, first: int, last: int) -> datetime:
    """One row a transaction; a moment after the last of them."""
    rig.write(*(f"INSERT INTO t VALUES ({number})" for number in range(first, last + 1)))
    return clock(rig)


def history(rig: Rig, *, intervals: int, rows: int = 5) -> list[Interval]:
    """Intervals that follow each other, with `rows` transactions in each."""
    moments = [clock(rig)]
    for number in range(intervals):
        moments.append(insert(rig, number * rows, number * rows + rows - 1))
    return [Interval(start=start, end=end) for start, end in pairwise(moments)]


def applied(rig: Rig) -> int:
    ((count,),) = rig.rows("SELECT count(*) FROM t")
    return int(count)


def each_once(rig: Rig) -> bool:
    """Every row bears the transaction that inserted it: nobody wrote it again."""
    return rig.rows("SELECT count(*) FROM t WHERE xmax <> 0") == [(0,)] and rig.comparison().equal


def something(rig: Rig, interval: Interval) -> str | None:
    return look_for_changes(rig.config, rig.source, rig.target, interval=interval).reason


def test_each_run_applies_what_was_committed_before_its_intervals_end(rig: Rig) -> None:
    for number, interval in enumerate(history(rig, intervals=4)):
        assert something(rig, interval) is not None
        closed = rig.run(f"r{number}", interval=interval)
        assert (closed.stop_seqno, closed.stopped_early) == (number * 5 + 4, False)
        assert applied(rig) == (number + 1) * 5
        assert something(rig, interval) is None
    assert each_once(rig)


@gated
def test_the_source_goes_on_writing_meanwhile(rig: Rig) -> None:
    intervals = history(rig, intervals=3)
    with writing(rig, first=1000):
        for number, interval in enumerate(intervals):
            rig.run(f"r{number}", interval=interval)
            assert applied(rig) == (number + 1) * 5
    rig.run()
    assert each_once(rig)


@contextmanager
def writing(rig: Rig, first: int) -> Iterator[None]:
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(rig.source_dsn, autocommit=True) as connection:
            number = first
            while not ended.is_set():
                connection.execute("INSERT INTO t VALUES (%s)", [number])
                number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@gated
def test_a_cleared_run_and_a_covered_one_apply_nothing(rig: Rig) -> None:
    first, second, third = history(rig, intervals=3)
    rig.run("a", interval=first)
    rig.run("b", interval=second)
    for run_id, interval in (("a", first), ("b", second), ("again", first)):
        closed = rig.run(run_id, interval=interval)
        assert (closed.rows, closed.stop_seqno) == (0, 9)
    rig.run("c", interval=third)
    assert each_once(rig)


@gated
def test_a_gap_ahead_is_refused_and_closed_by_the_interval_before(rig: Rig) -> None:
    first, second, third = history(rig, intervals=3)
    rig.run("a", interval=first)
    with pytest.raises(GapAhead, match="is not applied") as raised:
        rig.run("c", interval=third)
    assert second.start <= raised.value.since < second.end
    assert raised.value.last_seqno == 9
    assert applied(rig) == 5
    assert lease_view("p", rig.target).owner is None
    rig.run("b", interval=second)
    rig.run("c", interval=third)
    assert each_once(rig)


@gated
def test_a_gap_that_another_runs_ownership_kept_from_being_captured_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = history(rig, intervals=2)
    state = PostgresLedger.state

    def owned(ledger: PostgresLedger) -> PipelineState | None:
        found = state(ledger)
        return found and replace(found, is_owned=True)

    monkeypatch.setattr(PostgresLedger, "state", owned)
    assert not rig.capture("b", interval=second).done
    monkeypatch.undo()
    with pytest.raises(GapAhead):
        run.open_run(rig.config, rig.source, rig.target, owner="b", run_id="b", interval=second)


@gated
def test_the_first_interval_need_not_begin_where_the_slot_does(rig: Rig) -> None:
    start = clock(rig)
    end = insert(rig, 1, 3)
    rig.run("a", interval=Interval(start=start - timedelta(days=1), end=end))
    assert applied(rig) == 3


@gated
def test_empty_intervals_between_are_no_gap(rig: Rig) -> None:
    first, *_ = history(rig, intervals=1)
    rig.run("a", interval=first)
    start = clock(rig)
    end = insert(rig, 100, 102)
    rig.run("c", interval=Interval(start=start, end=end))
    assert each_once(rig)


@gated
def test_a_run_that_waits_for_the_lease_knows_what_goes_first(rig: Rig) -> None:
    first, second, third = history(rig, intervals=3)
    for run_id, interval in (("a", first), ("b", second), ("c", third)):
        rig.capture(run_id, interval=interval)
    run.open_run(rig.config, rig.source, rig.target, owner="a", run_id="a", interval=first)
    for run_id, goes_first in (("b", 4), ("c", 9)):
        with pytest.raises(LeaseBusy) as busy:
            run.open_run(rig.config, rig.source, rig.target, owner=run_id, run_id=run_id)
        assert busy.value.reach_seqno == goes_first


@gated
def test_a_run_that_catches_up_leaves_covered_no_ops(rig: Rig) -> None:
    first, second, third = history(rig, intervals=3)
    assert rig.run("c", interval=third, catch_up=True).stop_seqno == 14
    for run_id, interval in (("b", second), ("a", first)):
        assert something(rig, interval) is None
        assert rig.run(run_id, interval=interval).rows == 0
    assert each_once(rig)


@gated
def test_a_run_with_an_interval_ends_inside_what_was_planned_as_one_epoch(rig: Rig) -> None:
    first, second, third = history(rig, intervals=3)
    with closing(open_capture(rig.source, rig.config)) as other:
        list(other.capture(other.source.offset(), max_changes=1000, cancelled=lambda: False))
    plan(rig.config, rig.target)
    assert rig.rows("SELECT last_seqno FROM parallel_apply.epoch") == [(14,)]
    for number, interval in enumerate((first, second, third)):
        assert rig.run(f"r{number}", interval=interval).stop_seqno == number * 5 + 4
    assert each_once(rig)


@gated
def test_a_bound_that_only_the_lanes_come_to_stops_their_capture(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = history(rig, intervals=2, rows=20)
    monkeypatch.setattr(preparing, "FIRST_CAPTURE_CHANGES", 1)
    rig.capture("a", interval=first)
    opened = run.open_run(rig.config, rig.source, rig.target, owner="a", run_id="a", interval=first)
    assert opened.until_seqno is None
    assert opened.until_time == first.end.isoformat()
    closed = run.close_run(opened, rig.config, rig.target, rig.apply(opened))
    assert (closed.stop_seqno, closed.stopped_early) == (19, False)
    rig.run("b", interval=second)
    assert each_once(rig)


@gated
def test_a_run_without_an_interval_takes_everything_and_covers_the_intervals(rig: Rig) -> None:
    first, second = history(rig, intervals=2)
    rig.run("now")
    assert applied(rig) == 10
    for run_id, interval in (("a", first), ("b", second)):
        assert something(rig, interval) is None
        assert rig.run(run_id, interval=interval).rows == 0


@gated
def test_until_stands_before_the_interval(rig: Rig) -> None:
    first, second = history(rig, intervals=2)
    ((lsn,),) = rig.rows("SELECT pg_current_wal_flush_lsn()::text", side="source")
    report = rig.capture("a", until=lsn, interval=first)
    assert report.to_json()["until_offset"] == lsn
    assert report.bounds.until_time is None
    assert rig.run("a", until=lsn, interval=first).stop_seqno == 9
    assert second.end > second.start


@gated
def test_a_run_id_that_comes_back_for_another_interval_is_another_run(rig: Rig) -> None:
    first, second = history(rig, intervals=2)
    rig.run("a", interval=first)
    assert rig.run("a", interval=second).stop_seqno == 9
    assert each_once(rig)


@gated
def test_a_bound_is_fixed_although_the_sources_clock_is_set_back(rig: Rig) -> None:
    """As if the source's clock had been ahead when the second interval's run froze its bound, and then was set back:
    what commits afterwards, with times inside the first interval, lies behind the bounds of both.
    """
    insert(rig, 1, 3)
    now = clock(rig)
    later = Interval(start=now + timedelta(hours=1), end=now + timedelta(hours=2))
    sooner = Interval(start=now - timedelta(hours=1), end=now + timedelta(hours=1))
    freeze(rig, "later", later)
    insert(rig, 4, 6)
    freeze(rig, "sooner", sooner)
    assert rig.run("sooner", interval=sooner).stop_seqno == 2
    assert rig.run("later", interval=later).stop_seqno == 2
    assert something(rig, sooner) is None
    assert something(rig, later) is None
    assert rig.run("now").stop_seqno == 5


@gated
def test_what_commits_behind_an_intervals_end_with_a_time_of_its_own_is_the_next_ones(rig: Rig) -> None:
    """As with a source that is a subscriber itself: a transaction has the time that its publisher gave it."""
    insert(rig, 1, 3)
    now = clock(rig)
    ended = Interval(start=now - timedelta(hours=1), end=now + timedelta(hours=1))
    following = Interval(start=ended.end, end=ended.end + timedelta(hours=1))
    freeze(rig, "ended", ended)
    insert(rig, 4, 6)
    freeze(rig, "following", following)
    assert rig.run("ended", interval=ended).stop_seqno == 2
    assert something(rig, ended) is None
    assert rig.run("following", interval=following).stop_seqno == 5
    assert each_once(rig)


def freeze(rig: Rig, run_id: str, interval: Interval) -> None:
    from airflow_parallel_apply.pipeline.run.sessions import open_session

    with (
        closing(open_capture(rig.source, rig.config)) as reading,
        closing(open_session(rig.target, rig.config)) as session,
    ):
        session.ledger.freeze_run(run_id, reading.source.offset(), interval)


@gated
def test_an_interval_that_is_not_past_yet_is_waited_for(rig: Rig) -> None:
    now = clock(rig)
    ahead = Interval(start=now, end=now + timedelta(hours=1))
    assert not source_is_past(rig.config, rig.source, ahead.end)
    with pytest.raises(Unavailable, match="is not past the run's interval"):
        rig.capture("a", interval=ahead)
    assert rig.rows("SELECT count(*) FROM parallel_apply.run") == [(0,)]


def test_who_may_be_committing_holds_up_the_bound_until_it_has(rig: Rig) -> None:
    with psycopg.connect(rig.source_dsn) as slow:
        slow.execute("INSERT INTO t VALUES (1)")
        moment = clock(rig)
        assert not source_is_past(rig.config, rig.source, moment)
        slow.commit()
    wait_until_past(rig, moment)


@pytest.mark.long
def test_a_transaction_that_is_open_for_long_holds_up_nothing_and_belongs_to_its_commit(rig: Rig) -> None:
    start = clock(rig)
    with psycopg.connect(rig.source_dsn) as slow:
        slow.execute("INSERT INTO t VALUES (1)")
        end = insert(rig, 2, 3)
        wait_until_past(rig, end)
        first = Interval(start=start, end=end)
        assert rig.run("a", interval=first).stop_seqno == 1
        slow.commit()
    second = Interval(start=end, end=clock(rig))
    assert rig.run("b", interval=second).stop_seqno == 2
    assert each_once(rig)


def wait_until_past(rig: Rig, moment: datetime) -> None:
    deadline = time.monotonic() + 120
    while not source_is_past(rig.config, rig.source, moment):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@gated
def test_a_transaction_at_the_boundary_belongs_to_the_next_interval(rig: Rig) -> None:
    insert(rig, 1, 3)
    rig.capture("look")
    second = open_reader(rig.config.log_url).transactions(0, 1).column("commit_time").to_pylist()[0]
    first = Interval(start=second - timedelta(hours=1), end=second)
    assert rig.run("a", interval=first).stop_seqno == 0
    assert rig.run("b", interval=Interval(start=second, end=second + TICK)).stop_seqno == 1


@gated
def test_a_covered_run_does_not_wait_for_the_run_under_way(rig: Rig) -> None:
    first, second = history(rig, intervals=2)
    rig.run("a", interval=first)
    rig.capture("b", interval=second)
    opened = run.open_run(rig.config, rig.source, rig.target, owner="b", run_id="b", interval=second)
    assert something(rig, first) is None
    assert something(rig, second) == "another run is under way"
    with pytest.raises(LeaseBusy) as busy:
        run.open_run(rig.config, rig.source, rig.target, owner="c", run_id="c", interval=second)
    assert busy.value.generation == opened.generation
    assert busy.value.reach_seqno is None, "nothing goes first but the owner"
    run.close_run(opened, rig.config, rig.target, rig.apply(opened))
    assert something(rig, second) is None


@gated
@pytest.mark.parametrize(
    "stamped", variants(["infinity", "-infinity", "2999-01-01"], seldom=["-infinity", "2999-01-01"])
)
def test_a_commit_time_that_another_tool_gave_holds_up_no_later_interval(rig: Rig, stamped: str) -> None:
    (interval,) = history(rig, intervals=1)
    with psycopg.connect(rig.source_dsn) as connection:
        connection.execute("SELECT pg_replication_origin_create('a tool')")
        connection.execute("SELECT pg_replication_origin_session_setup('a tool')")
        connection.execute("SELECT pg_replication_origin_xact_setup('0/1', %s)", [stamped])
        connection.execute("INSERT INTO t VALUES (100)")
        connection.commit()
        connection.execute("SELECT pg_replication_origin_session_reset(), pg_replication_origin_drop('a tool')")
    rig.run("a", interval=interval)
    rig.run("b", interval=Interval(start=interval.end, end=insert(rig, 200, 201)))
    rig.run("c", interval=Interval(start=clock(rig), end=insert(rig, 300, 301)))
    assert each_once(rig)
