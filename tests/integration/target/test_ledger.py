"""A ledger in PostgreSQL, beyond what every ledger promises (`contract/test_ledger.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    LeaseBusy,
    OwnershipLost,
    RetryableError,
)
from airflow_parallel_apply.pipeline.ledger.protocol import RoutingChange
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.model.rework import ReworkKind
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget, schema
from airflow_parallel_apply.pipeline.target.postgres.schema import VERSION
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from tests.integration.target.conftest import LEASE, RUN1, Scene
from tests.support.variants import gated


@pytest.fixture(params=["in the target", "elsewhere"])
def scene(request: pytest.FixtureRequest, target_dsn: str, ledger_dsn: str) -> Iterator[Scene]:
    """By where the ledger is."""
    made = Scene(target_dsn, ledger_dsn if request.param == "elsewhere" else None)
    yield made
    for session in made.opened:
        session.close()


def test_migrate_says_what_it_made_and_then_nothing(target_dsn: str) -> None:
    scene = Scene(target_dsn)
    try:
        assert scene.target.migrate() == ()
        assert scene.target.is_installed()
        scene.run("DROP SCHEMA parallel_apply CASCADE")
        assert not scene.target.is_installed()
        schema, tables = scene.target.migrate()
        assert schema.startswith("created the schema parallel_apply ")
        assert tables.endswith(f"to version {VERSION}")
    finally:
        scene.session.close()


@gated
def test_many_may_migrate_at_the_same_time(scene: Scene) -> None:
    scene.run("DROP SCHEMA parallel_apply CASCADE")
    sides = 1 if scene.ledger_dsn is None else 2
    scene.run_at_ledger("DROP SCHEMA IF EXISTS parallel_apply CASCADE")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda target: target.migrate(), [scene.another() for _ in range(4)]))
    assert sum(map(len, made)) == 2 * sides


@gated
def test_offsets_that_an_earlier_release_called_lsn_stay(target_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of version 8 are made as that release made them."""
    scene = Scene(target_dsn)
    scene.run("DROP SCHEMA parallel_apply CASCADE")
    with monkeypatch.context() as before:
        before.setattr(schema, "VERSION", 8)
        scene.target.migrate()
    scene.start()
    scene.run("INSERT INTO parallel_apply.run (pipeline, run_id, until_lsn) VALUES ('demo', 'a', 100)")
    scene.run(
        "INSERT INTO parallel_apply.recopy (pipeline, schema_name, table_name, recopy_id, lsn, rows)"
        " VALUES ('demo', 'public', 't', 'c1', 50, 3)"
    )
    (read_before,) = scene.target.recopied()
    assert read_before.offset == 50, "check reads them before a run upgrades them"
    assert scene.target.migrate() == (f"brought the tables in the schema parallel_apply to version {VERSION}",)
    (read,) = scene.target.recopied()
    assert read == read_before
    bounds = scene.ledger.run_bounds("a")
    assert bounds is not None
    assert bounds.until_offset == 100
    scene.session.close()


@gated
def test_merge_points_that_an_earlier_release_counted_stay(target_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of version 13 are made as that release made them."""
    scene = Scene(target_dsn)
    scene.run("DROP SCHEMA parallel_apply CASCADE")
    with monkeypatch.context() as before:
        before.setattr(schema, "VERSION", 13)
        scene.target.migrate()
    scene.start()
    scene.run("INSERT INTO parallel_apply.conflict VALUES ('demo', 'unique', 'public.t', 3, 50, now())")
    scene.run("INSERT INTO parallel_apply.rework VALUES ('demo', 'replay', 'unique', 'public.t', 1, 60, now())")
    scene.target.migrate()
    merged, replayed = scene.ledger.rework()
    assert (merged.kind, merged.count, merged.last_seqno) == (ReworkKind.MERGE_POINT, 3, 50)
    assert (replayed.kind, replayed.count) == (ReworkKind.REPLAY, 1)
    scene.session.close()


@gated
def test_a_schema_of_a_newer_release_is_refused(scene: Scene) -> None:
    scene.run("INSERT INTO parallel_apply.schema_version VALUES (99)")
    with pytest.raises(ConfigurationError, match="version 99"):
        scene.target.migrate()


def test_a_slow_target_does_not_end_the_session_of_its_ledger(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def noting(name: str, answer: object) -> None:
        def note(*_: object, **__: object) -> object:
            limit = scene.ledger._session.connection().execute("SHOW idle_in_transaction_session_timeout").fetchone()
            limits.append((name, *(limit or ())))
            return answer

        monkeypatch.setattr(PostgresTarget, name, note)

    limits: list[object] = []
    routing, is_elsewhere = Routing(channels=1), scene.ledger_dsn is not None
    for name, answer in {"identity": "elsewhere", "lay_out": -1, "routing_digest": routing.digest}.items():
        noting(name, answer)
    for _ in range(2):
        scene.ledger.route(RoutingChange(generation=None, log_id="log1", routing=routing), scene.target)
    under_lock = "10min" if is_elsewhere else "10s"
    outside = [("identity", "0")] if is_elsewhere else []
    assert limits == [*outside, ("lay_out", under_lock), ("routing_digest", under_lock)]


@gated
def test_a_copy_that_comes_too_late_keeps_only_others_from_routing(target_dsn: str) -> None:
    """It keeps runs out before it finds that one owns the pipeline."""
    scene = Scene(target_dsn)
    try:
        scene.start()
        scene.another().ledger.keep_runs_out()
        scene.route(scene.generation, channels=2)
        scene.ledger.release(scene.generation, clean_stop_seqno=None)
        with pytest.raises(LeaseBusy, match="are being copied anew"):
            scene.route(None, channels=3)
        with pytest.raises(LeaseBusy, match="is being taken, routed or dropped"):
            scene.another().ledger.keep_runs_out()
    finally:
        for session in scene.opened:
            session.close()


def test_a_slow_drop_at_a_target_holds_up_no_other_pipeline(target_dsn: str, ledger_dsn: str) -> None:
    def is_free() -> Removal:
        with psycopg.connect(ledger_dsn) as other:
            found.append(other.execute("SELECT pg_try_advisory_xact_lock(7020137112410041973)").fetchone())
        return Removal()

    found: list[object] = []
    scene = Scene(target_dsn, ledger_dsn)
    scene.start()
    scene.ledger.release(scene.generation, clean_stop_seqno=None)
    scene.ledger.drop(is_free, force=False)
    assert found == [(True,)]
    for session in scene.opened:
        session.close()


@gated
def test_a_takeover_ends_the_sessions_that_hold_positions(scene: Scene) -> None:
    """As a lane does that stands still (SIGSTOP) between its merge and its commit."""
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    name = scene.run("SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'pa:%:0:%'")[0][0]
    with psycopg.connect(scene.dsn, application_name=str(name)) as stopped:
        stopped.execute("UPDATE parallel_apply.position SET seqno = 5")
        scene.another().acquire(RUN1)
        with pytest.raises(psycopg.OperationalError):
            stopped.execute("SELECT 1")
    assert scene.seqnos() == [-1]


@gated
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


@gated
def test_a_caller_without_a_generation_routes_only_an_idle_pipeline(scene: Scene) -> None:
    scene.route(None, channels=1)
    scene.session.acquire(RUN1)
    scene.route(None, channels=1)
    with pytest.raises(LeaseBusy):
        scene.route(None, channels=2)
    scene.run_at_ledger("UPDATE parallel_apply.pipeline SET lease_until = now() - interval '1 hour'")
    with pytest.raises(LeaseBusy):
        scene.route(None, channels=2)
    with pytest.raises(OwnershipLost):
        scene.route(99, channels=2)


HOUR = timedelta(hours=1)
EIGHT = datetime(2026, 1, 1, 8, tzinfo=UTC)


def hour(number: int) -> Interval:
    return Interval(start=EIGHT + number * HOUR, end=EIGHT + (number + 1) * HOUR)


@gated
def test_the_offsets_of_intervals_are_monotone_in_their_ends(scene: Scene) -> None:
    scene.start()
    freeze = scene.ledger.freeze_run
    assert freeze("third", 100, hour(2)).until_offset == 100
    assert freeze("first", 300, hour(0)).until_offset == 100
    assert freeze("fourth", 90, hour(3)).until_offset == 100
    assert freeze("fifth", 400, hour(4)).until_offset == 400
    assert freeze("fourth again", 500, hour(3)).until_offset == 100
    assert freeze("manual", 50).until_offset == 50
    bounds = scene.ledger.run_bounds("first")
    assert bounds is not None
    assert (bounds.from_time, bounds.until_time) == (EIGHT, EIGHT + HOUR)


@gated
def test_a_run_id_with_another_interval_is_frozen_anew(scene: Scene) -> None:
    scene.start()
    scene.ledger.freeze_run("r", 100, hour(0))
    scene.ledger.settle_run("r", 7)
    assert scene.ledger.freeze_run("r", 200, hour(0)).until_seqno == 7
    again = scene.ledger.freeze_run("r", 200, hour(1))
    assert (again.until_offset, again.until_seqno) == (200, None)
    assert scene.ledger.run_bounds("another") is None


@gated
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


@gated
def test_a_process_that_stops_inside_a_brief_transaction_does_not_keep_the_lease(scene: Scene) -> None:
    """Nothing is sent, as by a stopped process: the server ends it, and whoever waits for the row goes on."""
    scene.start()
    stopped = Session(scene.ledger_dsn or scene.dsn, pipeline="demo")

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
