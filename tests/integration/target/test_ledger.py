"""Lease, routing, run bounds and plan on a real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    LeaseBusy,
    OwnershipLost,
    PlanError,
    RetryableError,
)
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind, Reason
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.postgres.schema import VERSION
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from tests.integration.target.conftest import LEASE, Scene


@pytest.fixture(params=["in the target", "elsewhere"])
def scene(request: pytest.FixtureRequest, target_dsn: str, ledger_dsn: str) -> Iterator[Scene]:
    """By where the ledger is."""
    made = Scene(target_dsn, ledger_dsn if request.param == "elsewhere" else None)
    yield made
    for session in made.opened:
        session.close()


def epoch(number: int, first: int, last: int) -> Epoch:
    return Epoch(
        number=number,
        first_seqno=first,
        last_seqno=last,
        kind=EpochKind.PARALLEL,
        reason=Reason.CHANGES,
        rows=(3, 4),
        bytes_=(30, 40),
    )


def test_migrate_says_what_it_made_and_then_nothing(target_dsn: str) -> None:
    scene = Scene(target_dsn)
    try:
        assert scene.target.migrate() == ()
        assert scene.target.is_installed()
        scene.run("DROP SCHEMA parallel_apply CASCADE")
        assert not scene.target.is_installed()
        schema, tables = scene.target.migrate()
        assert schema.startswith("schema parallel_apply ")
        assert tables.endswith(f"of version {VERSION}")
    finally:
        scene.session.close()


def test_many_may_migrate_at_the_same_time(scene: Scene) -> None:
    scene.run("DROP SCHEMA parallel_apply CASCADE")
    sides = 1 if scene.ledger_dsn is None else 2
    scene.run_at_ledger("DROP SCHEMA IF EXISTS parallel_apply CASCADE")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda target: target.migrate(), [scene.another() for _ in range(4)]))
    assert sum(map(len, made)) == 2 * sides


def test_a_schema_of_a_newer_release_is_refused(scene: Scene) -> None:
    scene.run("INSERT INTO parallel_apply.schema_version VALUES (99)")
    with pytest.raises(ConfigurationError, match="version 99"):
        scene.target.migrate()


def test_the_lease_keeps_another_owner_out_while_its_lease_lasts(scene: Scene) -> None:
    first = scene.session.acquire(log_id="log1", owner="run1", lease=LEASE)
    with pytest.raises(LeaseBusy, match="run1"):
        scene.another().acquire(log_id="log1", owner="run2", lease=LEASE)
    again = scene.another().acquire(log_id="log1", owner="run1", lease=LEASE)
    assert again.generation == first.generation + 1
    with pytest.raises(OwnershipLost):
        scene.ledger.renew_lease(first.generation, LEASE)
    scene.ledger.renew_lease(again.generation, LEASE)


def test_a_lease_that_is_over_is_taken_over(scene: Scene) -> None:
    first = scene.session.acquire(log_id="log1", owner="run1", lease=timedelta(0))
    assert (first.owner, first.is_owned) == ("run1", False)
    second = scene.another().acquire(log_id="log1", owner="run2", lease=LEASE)
    assert (second.owner, second.is_owned, second.generation) == ("run2", True, first.generation + 1)


def test_release_keeps_the_clean_stop_and_acquire_forgets_it(scene: Scene) -> None:
    found = scene.session.acquire(log_id="log1", owner="run1", lease=LEASE)
    scene.ledger.release(found.generation, clean_stop_seqno=17)
    state = scene.ledger.state()
    assert state is not None
    assert (state.owner, state.is_owned, state.clean_stop_seqno) == (None, False, 17)
    assert scene.another().acquire(log_id="log1", owner="run2", lease=LEASE).clean_stop_seqno is None
    with pytest.raises(OwnershipLost):
        scene.ledger.release(found.generation, clean_stop_seqno=18)


def test_another_log_is_refused(scene: Scene) -> None:
    scene.start()
    with pytest.raises(ConfigurationError, match="log1"):
        scene.session.acquire(log_id="log2", owner="run1", lease=LEASE)


def test_a_takeover_ends_the_sessions_that_hold_positions(scene: Scene) -> None:
    """As a lane does that stands still (SIGSTOP) between its merge and its commit."""
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    name = scene.run("SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'pa:%:0:%'")[0][0]
    with psycopg.connect(scene.dsn, application_name=str(name)) as stopped:
        stopped.execute("UPDATE parallel_apply.position SET seqno = 5")
        scene.another().acquire(log_id="log1", owner="run1", lease=LEASE)
        with pytest.raises(psycopg.OperationalError):
            stopped.execute("SELECT 1")
    assert scene.seqnos() == [-1]


def test_taking_a_channel_does_not_touch_the_others(scene: Scene) -> None:
    scene.start(channels=3)
    lanes = [scene.another().target for _ in range(3)]
    for channel, lane in enumerate(lanes):
        taken = lane.take(channel, generation=scene.generation, token=f"claim{channel}")
        assert (taken.channel, taken.seqno, taken.claim) == (channel, -1, f"claim{channel}")
    holders = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pa:%:%:%'"
    assert scene.run(holders) == [(3,)]
    scene.target.take(None, generation=scene.generation, token="serial")
    assert scene.run(holders) == [(1,)]
    assert {position.claim for position in scene.target.positions()} == {"serial"}


def test_routing_changes_only_while_all_positions_are_equal(scene: Scene) -> None:
    scene.start(channels=2)
    scene.session.route(scene.generation, log_id="log1", routing=Routing(channels=2))
    scene.session.route(scene.generation, log_id="log1", routing=Routing(channels=3))
    assert scene.seqnos() == [-1, -1, -1]
    scene.target.take(1, generation=scene.generation, token="claim1")
    scene.commit(scene.stage(scene.unit(4, channel=1), []))
    with pytest.raises(PlanError, match="0: -1, 1: 4, 2: -1"):
        scene.session.route(scene.generation, log_id="log1", routing=Routing(channels=2))
    for channel in (0, 2):
        scene.target.take(channel, generation=scene.generation, token="claim1")
        scene.commit(scene.stage(scene.unit(4, channel=channel), []))
    scene.session.route(scene.generation, log_id="log1", routing=Routing(channels=2))
    assert scene.seqnos() == [4, 4]


def test_a_caller_without_a_generation_routes_only_an_idle_pipeline(scene: Scene) -> None:
    scene.session.route(None, log_id="log1", routing=Routing(channels=1))
    scene.session.acquire(log_id="log1", owner="run1", lease=LEASE)
    scene.session.route(None, log_id="log1", routing=Routing(channels=1))
    with pytest.raises(LeaseBusy):
        scene.session.route(None, log_id="log1", routing=Routing(channels=2))
    scene.run_at_ledger("UPDATE parallel_apply.pipeline SET lease_until = now() - interval '1 hour'")
    with pytest.raises(LeaseBusy):
        scene.session.route(None, log_id="log1", routing=Routing(channels=2))
    with pytest.raises(OwnershipLost):
        scene.session.route(99, log_id="log1", routing=Routing(channels=2))


def test_run_bounds_are_frozen_by_the_first_call(scene: Scene) -> None:
    scene.start()
    scene.ledger.freeze_run("r", 100)
    bounds = scene.ledger.freeze_run("r", 200)
    assert (bounds.until_lsn, bounds.until_seqno) == (100, None)
    scene.ledger.settle_run("r", 7)
    assert scene.ledger.settle_run("r", 9).until_seqno == 7
    scene.ledger.freeze_run("s", 300)
    scene.ledger.settle_run("s", 12)
    assert scene.ledger.run_cuts(-1) == (7, 12)
    assert scene.ledger.run_cuts(7) == (12,)
    with pytest.raises(ConfigurationError, match="never opened"):
        scene.ledger.settle_run("unknown", 1)


HOUR = timedelta(hours=1)
EIGHT = datetime(2026, 1, 1, 8, tzinfo=UTC)


def hour(number: int) -> Interval:
    return Interval(start=EIGHT + number * HOUR, end=EIGHT + (number + 1) * HOUR)


def test_the_lsns_of_intervals_are_monotone_in_their_ends(scene: Scene) -> None:
    scene.start()
    freeze = scene.ledger.freeze_run
    assert freeze("third", 100, hour(2)).until_lsn == 100
    assert freeze("first", 300, hour(0)).until_lsn == 100
    assert freeze("fourth", 90, hour(3)).until_lsn == 100
    assert freeze("fifth", 400, hour(4)).until_lsn == 400
    assert freeze("fourth again", 500, hour(3)).until_lsn == 100
    assert freeze("manual", 50).until_lsn == 50
    bounds = scene.ledger.run_bounds("first")
    assert bounds is not None
    assert (bounds.from_time, bounds.until_time) == (EIGHT, EIGHT + HOUR)


def test_a_run_id_with_another_interval_is_frozen_anew(scene: Scene) -> None:
    scene.start()
    scene.ledger.freeze_run("r", 100, hour(0))
    scene.ledger.settle_run("r", 7)
    assert scene.ledger.freeze_run("r", 200, hour(0)).until_seqno == 7
    again = scene.ledger.freeze_run("r", 200, hour(1))
    assert (again.until_lsn, again.until_seqno) == (200, None)
    assert scene.ledger.run_bounds("another") is None


def test_covered_is_up_to_the_latest_interval_that_ends_at_or_below_a_seqno(scene: Scene) -> None:
    scene.start()
    for number, seqno in ((0, 4), (1, 4), (2, 9)):
        scene.ledger.freeze_run(f"r{number}", 100, hour(number))
        scene.ledger.settle_run(f"r{number}", seqno)
    scene.ledger.freeze_run("manual", 100)
    scene.ledger.settle_run("manual", 3)
    assert scene.ledger.covered_time(3) is None
    assert scene.ledger.covered_time(4) == EIGHT + 2 * HOUR
    assert scene.ledger.covered_time(9) == EIGHT + 3 * HOUR


def add(
    scene: Scene,
    epochs: Sequence[Epoch],
    *,
    after_seqno: int = -1,
    channels: int = 2,
    generation: int | None = 1,
) -> bool:
    return scene.ledger.add_epochs(
        epochs,
        routing_digest=Routing(channels=channels).digest,
        after_seqno=after_seqno,
        low_seqno=low_watermark(scene.target.positions()),
        generation=generation,
    )


def test_a_cut_forgets_the_plan_from_the_epoch_that_goes_on_beyond_it(scene: Scene) -> None:
    scene.start(channels=2)
    epochs = (epoch(0, 0, 4), epoch(1, 5, 9), epoch(2, 10, 14))
    add(scene, epochs)
    for seqno in (4, 9, 14, 20):
        scene.ledger.cut_plan(seqno, scene.target.positions(), generation=scene.generation)
        assert scene.ledger.epochs() == epochs
    scene.run("UPDATE parallel_apply.position SET seqno = 9 WHERE channel = 0")
    scene.ledger.cut_plan(7, scene.target.positions(), generation=scene.generation)
    assert scene.ledger.epochs() == epochs, "a channel is through with it"
    scene.ledger.cut_plan(12, scene.target.positions(), generation=scene.generation)
    assert scene.ledger.epochs() == epochs[:2]
    assert (scene.session.planned_seqno(), scene.ledger.next_epoch_number()) == (9, 2)
    scene.run("UPDATE parallel_apply.position SET seqno = 6")
    scene.ledger.cut_plan(7, scene.target.positions(), generation=scene.generation)
    assert scene.ledger.epochs() == epochs[:1], "all channels stand at one seqno inside it"
    assert scene.session.planned_seqno() == 6


def test_the_plan_grows_only_at_its_end_and_under_its_digest(scene: Scene) -> None:
    scene.start(channels=2)
    assert (scene.session.planned_seqno(), scene.ledger.next_epoch_number()) == (-1, 0)
    epochs = (epoch(0, 0, 4), epoch(1, 5, 9))
    assert not add(scene, epochs, channels=3)
    assert add(scene, epochs)
    assert not add(scene, epochs)
    assert (scene.session.planned_seqno(), scene.ledger.next_epoch_number()) == (9, 2)
    assert add(scene, (epoch(2, 10, 10),), after_seqno=9)
    assert scene.ledger.epochs()[:2] == epochs
    assert [found.number for found in scene.ledger.epochs(after_number=0, limit=1)] == [1]
    assert [found.number for found in scene.ledger.epochs(above_seqno=9)] == [2]
    assert [scene.ledger.last_epoch_at(seqno) for seqno in (3, 4, 100)] == [-1, 0, 2]


def test_while_a_pipeline_has_an_owner_nobody_else_plans(scene: Scene) -> None:
    scene.start(channels=2)
    older, epochs = scene.generation, (epoch(0, 0, 4),)
    scene.start(channels=2)
    with pytest.raises(LeaseBusy, match="plans it alone"):
        add(scene, epochs, generation=None)
    with pytest.raises(OwnershipLost, match=f"generation {older} "):
        add(scene, epochs, generation=older)
    scene.ledger.release(scene.generation, clean_stop_seqno=None)
    assert add(scene, epochs, generation=None)


def test_a_change_of_routing_drops_the_plan_above_the_positions(scene: Scene) -> None:
    scene.start(channels=1)
    add(scene, (epoch(0, 0, 4), epoch(1, 5, 9)), channels=1)
    scene.target.take(0, generation=scene.generation, token="claim1")
    scene.commit(scene.stage(scene.unit(4), []))
    scene.session.route(scene.generation, log_id="log1", routing=Routing(channels=2))
    assert [found.number for found in scene.ledger.epochs()] == [0]
    assert scene.session.planned_seqno() == 4


def test_a_process_that_stops_inside_a_brief_transaction_does_not_keep_the_lease(scene: Scene) -> None:
    """Nothing is sent, as by a stopped process: the server ends it, and whoever waits for the row goes on."""
    scene.start()
    stopped = Session(scene.ledger_dsn or scene.dsn, pipeline="demo", schema="parallel_apply")

    def stand_still() -> None:
        with stopped.transaction("plan") as connection:
            assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("10s",)
            connection.execute("SET LOCAL idle_in_transaction_session_timeout = '200ms'")
            connection.execute("SELECT FROM parallel_apply.pipeline FOR UPDATE")
            scene.ledger.renew_lease(scene.generation, LEASE)
            connection.execute("SELECT 1")

    with pytest.raises(RetryableError, match="idle-in-transaction"):
        stand_still()
    stopped.close()
