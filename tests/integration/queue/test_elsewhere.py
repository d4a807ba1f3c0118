"""A pipeline whose queue is not in its target: in another database, or behind the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.channel_status import ChannelState
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.admin.purge import purge_log
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus, read_status
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import QueueEndpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.finding import Severity, Side
from airflow_parallel_apply.pipeline.run import OpenedRun, request_stop
from airflow_parallel_apply.queue import QueueStats, QueueUnavailable, open_queue
from tests.support.eight_channels import UNIQUE, conflicts, make_rig, require_equal
from tests.support.queue_service import ServedQueue
from tests.support.rig import Rig
from tests.support.variants import GATED, gated

AWAY = QueueEndpoint(conn_id="queue", dsn="grpc://:hush@127.0.0.1:1")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedQueue]:
    one = ServedQueue(tmp_path / "queue")
    yield one
    one.stop()


@pytest.fixture
def service(served: ServedQueue) -> QueueEndpoint:
    return QueueEndpoint(conn_id="queue", dsn=served.url)


@pytest.fixture(params=[pytest.param("a database", marks=GATED), "a service"])
def elsewhere(request: pytest.FixtureRequest) -> QueueEndpoint:
    if request.param == "a service":
        return request.getfixturevalue("service")
    # Any database but the target's; the source's server has one.
    return QueueEndpoint(conn_id="queue", dsn=request.getfixturevalue("source_dsn"))


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    return make_rig(source_dsn, target_dsn, tmp_path, lanes=3)


def queues(endpoint: QueueEndpoint) -> tuple[QueueStats, ...]:
    with closing(open_queue(endpoint.dsn)) as queue:
        return queue.queue_stats()


def opened(rig: Rig, run_id: str) -> OpenedRun:
    """With tables, rows to apply and a filled queue."""
    rig.both(UNIQUE)
    rig.prepare()
    rig.write(*(f"INSERT INTO t VALUES ({key}, {key}, 'new')" for key in range(100)))
    rig.capture(run_id)
    return rig.open(run_id)


def look(rig: Rig, queue: QueueEndpoint | None) -> PipelineStatus:
    return read_status(rig.target, rig.config.pipeline, queue=queue)


@gated
@pytest.mark.parametrize("lanes", [8, pytest.param(1, marks=pytest.mark.long)])
def test_eight_channels_with_barriers_and_merge_points_are_steered_from_elsewhere(
    rig: Rig, elsewhere: QueueEndpoint, lanes: int
) -> None:
    rig = replace(rig.having(lanes=lanes), queue=elsewhere)
    rig.both(UNIQUE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 200) i")
    for _ in range(4):
        # Values go on from row to row, and so from channel to channel.
        rig.transaction("DELETE FROM t WHERE id = 1", *(f"UPDATE t SET u = u - 1 WHERE id = {n}" for n in range(2, 60)))
        rig.write("UPDATE t SET id = id - 1 WHERE id > 1 AND id < 60", "INSERT INTO t VALUES (59, 59, 'again')")
    rig.transaction("TRUNCATE t", "INSERT INTO t SELECT i, i, 'b' FROM generate_series(1, 100) i")
    rig.write(*(f"UPDATE t SET v = v || {step} WHERE id % 3 = {step % 3}" for step in range(9)))
    rig.run()
    require_equal(rig)
    assert queues(elsewhere) == ()
    assert rig.rows("SELECT to_regclass('parallel_apply.task')::text, queue FROM parallel_apply.pipeline") == [
        (None, elsewhere.place)
    ]
    rig.write("UPDATE t SET v = 'last' WHERE id < 50")
    rig.run()
    require_equal(rig)


@gated
def test_a_conflict_between_channels_meets_at_a_merge_point(rig: Rig, service: QueueEndpoint) -> None:
    """One lane serves channel after channel, so that they are apart for certain."""
    rig = replace(rig.having(lanes=1), queue=service)
    rig.both(UNIQUE)
    rig.prepare()
    rig.write(*(f"INSERT INTO t VALUES ({key}, {key}, 'old')" for key in range(40)))
    rig.run()
    for key in range(40):
        rig.transaction(
            f"UPDATE t SET u = u + 1000 WHERE id = {key}", f"INSERT INTO t VALUES ({key + 100}, {key}, 'x')"
        )
    rig.run()
    require_equal(rig)
    assert conflicts(rig)[("unique", "public.t")] > 0


def test_a_run_stops_in_its_middle_and_status_tells_what_each_channel_does(rig: Rig, elsewhere: QueueEndpoint) -> None:
    rig = replace(rig, queue=elsewhere)
    run = opened(rig, "first")
    before = look(rig, elsewhere)
    assert (before.phase, {channel.state for channel in before.channels}) == ("running", {ChannelState.WAITING})
    assert request_stop("p", rig.target, queue=elsewhere).stop_seqno is not None
    rig.apply(run)
    rig.close(run)
    after = look(rig, elsewhere)
    assert (after.phase, after.warnings) == ("stopped", ())
    require_equal(rig)


@gated
def test_pipelines_of_one_name_into_two_targets_share_a_queue(
    rig: Rig, service: QueueEndpoint, tmp_path: Path, source_server: PostgresServer, target_server: PostgresServer
) -> None:
    """The other one goes the other way, since slots of one name do not share a server."""
    one = replace(rig, queue=service)
    sides = target_server.create_database("sharing_source"), source_server.create_database("sharing_target")
    other = replace(make_rig(*sides, tmp_path / "other", lanes=3), queue=service)
    first, second = opened(one, "run"), opened(other, "run")
    assert first.generation == second.generation
    assert len({stats.queue for stats in queues(service)}) == 2 * 9
    for mine, run in ((one, first), (other, second)):
        mine.apply(run)
        mine.close(run)
        require_equal(mine)
    assert queues(service) == ()
    for server, name in ((target_server, "sharing_source"), (source_server, "sharing_target")):
        drop_database(server, name)


def drop_database(server: PostgresServer, name: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
        )
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@gated
def test_who_was_not_told_of_the_run_s_queue_is_refused_and_told_its_name(rig: Rig, elsewhere: QueueEndpoint) -> None:
    run = opened(replace(rig, queue=elsewhere), "run")
    for call in (
        lambda: rig.lane(run, 0),
        lambda: request_stop("p", rig.target),
        lambda: rig.close(run),
        lambda: request_stop("p", rig.target, queue=AWAY),
    ):
        with pytest.raises(ConfigurationError, match=f"opened with the queue {elsewhere.place}") as refused:
            call()
        assert "--queue" in str(refused.value)
        assert "hush" not in str(refused.value)
    mine = replace(rig, queue=elsewhere)
    mine.apply(run)
    mine.close(run)
    require_equal(rig)


@pytest.mark.long
def test_a_queue_that_was_not_named_or_is_away_is_a_warning_of_the_status(
    rig: Rig, served: ServedQueue, service: QueueEndpoint
) -> None:
    opened(replace(rig, queue=service), "run")
    unnamed = look(rig, None)
    assert [(warning.side, warning.where) for warning in unnamed.warnings] == [(Side.QUEUE, service.place)]
    served.stop()
    away = look(rig, service)
    for status in (unnamed, away):
        assert (status.phase, {channel.state for channel in status.channels}) == ("unknown", {ChannelState.UNKNOWN})
        assert [channel.seqno for channel in status.channels] == [-1] * 8
    assert "cannot be reached" in away.warnings[0].what


@gated
def test_nothing_begins_without_the_queue(rig: Rig) -> None:
    rig.both(UNIQUE)
    with pytest.raises(QueueUnavailable, match=r"127\.0\.0\.1:1") as refused:
        replace(rig, queue=AWAY).prepare()
    assert "hush" not in str(refused.value)
    assert rig.rows("SELECT to_regnamespace('parallel_apply')::text") == [(None,)]
    assert (
        rig.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()", side="source") == []
    )
    (found,) = (
        finding
        for finding in check_pipeline(rig.config, rig.source, rig.target, queue=AWAY).findings
        if finding.side is Side.QUEUE
    )
    assert (found.severity, found.where) == (Severity.ERROR, "grpc://127.0.0.1:1")


@gated
def test_a_pipeline_moves_from_queue_to_queue_between_its_runs(rig: Rig, service: QueueEndpoint) -> None:
    here, there = rig, replace(rig, queue=service)
    # Cut off: its tasks stay behind.
    opened(here, "run 0")
    assert rig.rows("SELECT count(*) > 0 FROM parallel_apply.task") == [(True,)]
    rig.rows("UPDATE parallel_apply.pipeline SET lease_until = now() RETURNING 1")
    for number, steered in enumerate((there, here, there), 1):
        rig.write(f"UPDATE t SET v = '{number}' WHERE id % 2 = 0")
        steered.run(f"run {number}")
        require_equal(rig)
        assert rig.rows("SELECT count(*) FROM parallel_apply.task") == [(0,)]
    assert queues(service) == ()


def test_a_drop_removes_the_tasks_too_and_says_what_it_cannot_reach(rig: Rig, elsewhere: QueueEndpoint) -> None:
    opened(replace(rig, queue=elsewhere), "run")
    rig.rows("UPDATE parallel_apply.pipeline SET lease_until = now() RETURNING 1")
    assert [stats.queue for stats in queues(elsewhere)] != []
    unnamed = drop_pipeline("p", rig.source, rig.target)
    assert [leftover.what for leftover in unnamed.left if leftover.side is Side.QUEUE] == [
        f"tasks in the queue {elsewhere.place}: run this again with --queue"
    ]
    named = drop_pipeline("p", rig.source, rig.target, queue=elsewhere)
    assert not [leftover for leftover in named.left if leftover.side is Side.QUEUE]
    assert queues(elsewhere) == ()


@gated
def test_a_purge_needs_no_queue(rig: Rig, service: QueueEndpoint) -> None:
    steered = replace(rig, queue=service)
    run = opened(steered, "run")
    steered.apply(run)
    steered.close(run)
    assert purge_log(rig.config.log_url, [rig.target]).needed_seqno == 99


@gated
def test_the_commands_take_the_queue_and_show_no_token(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "a-token-of-ours"
    served = ServedQueue(tmp_path / "guarded", token=token)
    address = served.url.removeprefix("grpc://")
    environment = {
        "PARALLEL_APPLY_SOURCE": rig.source_dsn,
        "PARALLEL_APPLY_TARGET": rig.target_dsn,
        "PARALLEL_APPLY_QUEUE": f"grpc://:{token}@{address}",
        "COLUMNS": "200",
    }
    run = opened(replace(rig, queue=QueueEndpoint(conn_id="queue", dsn=environment["PARALLEL_APPLY_QUEUE"])), "run")
    status, told = command("status", "--pipeline", "p", "--json", environment=environment)
    assert (status, json.loads(told)["phase"]) == (0, "running")
    assert command("stop", "--pipeline", "p", environment=environment)[0] == 0
    wrong = {**environment, "PARALLEL_APPLY_QUEUE": f"grpc://:{token}x@{address}"}
    for arguments in (("stop", "--pipeline", "p"), ("drop", "--pipeline", "p", "--yes", "--force")):
        code, told = command(*arguments, environment=wrong)
        assert (code, "token" in told, token in told) == (1, True, False), told
    assert run.generation == 1
    served.stop()


def command(*arguments: str, environment: dict[str, str]) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env=environment)
    return done.exit_code, done.output
