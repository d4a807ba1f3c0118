"""Coordinator, lanes, queue and target together, on a log written by hand: fences, stops, failures, recovery."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.apply.keeper import Keeper
from airflow_parallel_apply.pipeline.apply.lane import Lane, LaneSignals
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator, FeedLimits
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase
from airflow_parallel_apply.pipeline.coordinate.tasks import STOP_SEQUENCE, Names
from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.book import extend_plan
from airflow_parallel_apply.pipeline.position import low_watermark
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.target.connect import open_target
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.connect import open_queue
from airflow_parallel_apply.queue.postgres import migrate
from airflow_parallel_apply.queue.protocol import Queue
from tests.support.local_stage import LocalStage
from tests.support.written_log import TABLE, Change, append, make_log


class Generation:
    """One generation of a pipeline over a written log, with as many lanes as a test likes."""

    def __init__(self, dsn: str, log_url: str, channels: int, *, limits: FeedLimits | None = None) -> None:
        self.endpoint = Endpoint(conn_id="target", dsn=dsn)
        self.config = PipelineConfig(
            pipeline="p", log_url=log_url, channels=channels, epoch_max_changes=20, lease=timedelta(seconds=3)
        )
        self.limits = limits
        self.queue: Queue = open_queue(dsn)
        self.target = self.open_target()
        self.target.migrate()
        migrate(dsn)
        log = open_reader(log_url)
        fence = self.target.acquire(log_id="log", owner="test", lease=timedelta(seconds=60))
        self.target.route(fence.generation, log_id="log", routing=Routing(channels=channels))
        extend_plan(log, self.target, self.config)
        self.names = Names(pipeline="p", generation=fence.generation)
        low = low_watermark(self.target.positions())
        self.coordinator = self.make_coordinator(self.target)
        self.coordinator.seed(
            CoordinatorState(
                phase=Phase.RUNNING,
                channels=channels,
                fed_epoch=self.target.last_epoch_at(low),
                fed_seqno=low,
                until_seqno=log.state().last_seqno,
            ),
            capture=False,
        )
        self.coordinator.feed()

    def open_target(self) -> Target:
        return open_target(self.endpoint, "p", log_url=self.config.log_url)

    def make_coordinator(self, target: Target) -> Coordinator:
        return Coordinator(self.queue, target, self.names, claimant="test", limits=self.limits)

    def lane(
        self,
        number: int = 0,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> LaneReport:
        claimant, target = f"lane {number}", self.open_target()
        report = LaneReport(lane=number, generation=self.names.generation)
        renewing = self.open_target()
        with Keeper(
            self.queue,
            claimant=claimant,
            lease=self.config.lease,
            renew_fence=lambda: renewing.renew_fence(self.names.generation, self.config.lease),
            on_lost=lambda what: None,
        ) as keeper:
            Lane(
                config=self.config,
                routing=target.routing(),
                lane=number,
                claimant=claimant,
                coordinator=Coordinator(
                    self.queue,
                    target,
                    self.names,
                    claimant=claimant,
                    limits=self.limits,
                ),
                target=target,
                log=open_reader(self.config.log_url),
                store=LogStore(open_reader(self.config.log_url)),
                stage=LocalStage(self.config.log_url, self.endpoint),
                keeper=keeper,
                signals=LaneSignals(stop_requested=stop_requested, cancelled=cancelled, report=lambda report: None),
                report=report,
                background_failure=lambda: None,
            ).run()
        target.close()
        renewing.close()
        return report

    def lanes(self, count: int) -> list[LaneReport]:
        with ThreadPoolExecutor(max_workers=count) as pool:
            return list(pool.map(self.lane, range(count)))

    def seqnos(self) -> list[int]:
        return [position.seqno for position in self.target.positions()]


def history(count: int, seed: int, *, truncates: bool = True) -> tuple[list[list[Change]], dict[int, str | None]]:
    """Random transactions that a table could really see, and what it holds after them."""
    source = random.Random(seed)
    rows: dict[int, str | None] = {}
    transactions = []
    for number in range(count):
        changes: list[Change] = []
        if truncates and source.random() < 0.05:
            changes.append(Change("T"))
            rows.clear()
        for _ in range(source.randint(1, 6)):
            key = source.randint(1, 40)
            value = f"{number}.{source.random()}"
            if key not in rows:
                changes.append(Change("I", key, value))
                rows[key] = value
            elif source.random() < 0.6:
                changes.append(Change("U", key, value))
                rows[key] = value
            else:
                changes.append(Change("D", key))
                del rows[key]
        transactions.append(changes)
    return transactions, rows


@pytest.fixture
def log_url(tmp_path: Path, target_dsn: str) -> str:
    url = str(tmp_path / "log")
    make_log(url)
    with psycopg.connect(target_dsn) as connection:
        connection.execute(TABLE)
    return url


@pytest.fixture
def make(target_dsn: str, log_url: str) -> Iterator[Callable[..., Generation]]:
    made: list[Generation] = []

    def make_generation(channels: int = 4, limits: FeedLimits | None = None) -> Generation:
        made.append(Generation(target_dsn, log_url, channels, limits=limits))
        return made[-1]

    yield make_generation
    for generation in made:
        generation.queue.close()
        generation.target.close()


def rows(dsn: str) -> dict[int, str | None]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT id, v FROM t").fetchall())


@pytest.mark.parametrize(("channels", "lanes"), [(1, 1), (8, 1), (8, 3), (4, 4)])
def test_lanes_bring_every_channel_to_the_same_seqno(
    make: Callable[..., Generation], target_dsn: str, log_url: str, channels: int, lanes: int
) -> None:
    transactions, expected = history(120, seed=channels * 10 + lanes)
    last = append(log_url, 0, transactions)
    generation = make(channels)
    reports = generation.lanes(lanes)
    assert rows(target_dsn) == expected
    assert generation.seqnos() == [last] * channels
    assert {report.stop_seqno for report in reports} == {last}
    state = generation.coordinator.state()
    assert (state.phase, state.acknowledged) == (Phase.DRAINED, tuple(range(channels)))


def test_a_stop_marker_is_last_in_every_channel(make: Callable[..., Generation], log_url: str) -> None:
    append(log_url, 0, history(60, seed=1)[0])
    generation = make(4)
    for channel in range(4):
        waiting = generation.queue.tasks(generation.names.channel(channel))
        assert waiting[-1].sequence == STOP_SEQUENCE
        assert [task.value["kind"] for task in waiting].count("stop") == 1


def test_a_stop_in_the_middle_leaves_all_channels_at_one_seqno_and_the_next_run_goes_on(
    make: Callable[..., Generation], target_dsn: str, log_url: str
) -> None:
    transactions, expected = history(200, seed=3)
    last = append(log_url, 0, transactions)
    generation = make(4, FeedLimits(epochs=3))
    asked = generation.coordinator.request_stop()
    again = generation.coordinator.request_stop()
    assert asked == again
    generation.lanes(2)
    assert asked.stop_seqno is not None
    assert asked.stop_seqno < last
    assert generation.seqnos() == [asked.stop_seqno] * 4
    following = make(4)
    following.lanes(2)
    assert rows(target_dsn) == expected
    assert following.seqnos() == [last] * 4


def test_a_lane_of_an_older_generation_stops_without_changing_anything(
    make: Callable[..., Generation], target_dsn: str, log_url: str
) -> None:
    append(log_url, 0, history(30, seed=4)[0])
    older = make(2)
    make(2)
    with pytest.raises(OwnershipLost, match="Clear the task open"):
        older.lane()
    assert rows(target_dsn) == {}


def test_after_a_failure_nothing_that_starts_above_it_is_applied_and_a_mended_target_goes_on(
    make: Callable[..., Generation], target_dsn: str, log_url: str
) -> None:
    """One channel of four cannot apply its second change; the others end where law 4 lets them."""
    first = [[Change("I", key, "a")] for key in range(1, 41)]
    transactions = first + [[Change("U", key, "b")] for key in range(1, 41)] * 3
    last = append(log_url, 0, transactions)
    generation = make(4, FeedLimits(epochs=1))
    generation.coordinator.request_stop()
    generation.lanes(2)
    with psycopg.connect(target_dsn) as connection:
        connection.execute("DELETE FROM t WHERE id = 17")
    failing = make(4)
    failing.lanes(3)
    state = failing.coordinator.state()
    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert "17" in state.failure.message
    with psycopg.connect(target_dsn) as connection:
        connection.execute("INSERT INTO t VALUES (17, 'a')")
    mended = make(4)
    mended.lanes(2)
    assert mended.seqnos() == [last] * 4
    assert rows(target_dsn) == dict.fromkeys(range(1, 41), "b")


def test_lanes_that_are_cancelled_at_random_lose_and_repeat_nothing(
    make: Callable[..., Generation], target_dsn: str, log_url: str
) -> None:
    transactions, expected = history(300, seed=5)
    last = append(log_url, 0, transactions)
    for attempt in range(3):
        generation = make(4)
        _interrupted(generation, after_checks=4 + 9 * attempt)
    final = make(4)
    final.lanes(2)
    assert rows(target_dsn) == expected
    assert final.seqnos() == [last] * 4


def _interrupted(generation: Generation, *, after_checks: int) -> None:
    left = threading.Semaphore(after_checks)
    with pytest.raises(Exception, match="cancelled"):
        generation.lane(cancelled=lambda: not left.acquire(blocking=False))


def test_feeding_keeps_within_its_limits(make: Callable[..., Generation], log_url: str) -> None:
    append(log_url, 0, history(200, seed=6, truncates=False)[0])
    generation = make(2, FeedLimits(epochs=2))
    assert generation.coordinator.state().fed_epoch == 1
    assert len(_kinds(generation, 0)) == 2


def _kinds(generation: Generation, channel: int) -> Sequence[str]:
    return [task.value["kind"] for task in generation.queue.tasks(generation.names.channel(channel))]
