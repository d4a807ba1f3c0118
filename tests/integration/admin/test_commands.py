"""`parallel-apply` and the router runtime as a person calls them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from click.testing import Result
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest
from airflow_parallel_apply.router.commands import app as router
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, source_database: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline=source_database,
        start=Start.EMPTY,
        log_url=str(tmp_path / "log"),
        channels=3,
        tables=TablePatterns(include=("public.*",)),
        epoch_max_changes=10,
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    return made


def call(rig: Rig, *arguments: str) -> Result:
    return CliRunner().invoke(
        app,
        list(arguments),
        env={"PARALLEL_APPLY_SOURCE": rig.source_dsn, "PARALLEL_APPLY_TARGET": rig.target_dsn, "COLUMNS": "200"},
    )


def test_prepare_says_what_it_created_and_then_that_all_is_there(rig: Rig) -> None:
    named = ("--pipeline", rig.config.pipeline, "--log-url", rig.config.log_url)
    arguments = ("prepare", *named, "--channels", "3", "--start", "empty")
    first = call(rig, *arguments)
    assert first.exit_code == 0, first.output
    for word in ("publication", "slot", "schema"):
        assert word in first.output
    again = call(rig, *arguments)
    assert "everything is there already" in again.output
    assert "public.t" in again.output


@pytest.mark.parametrize(
    "address", ["postgresql://u:s3cret@[bad", "host=h password='s3cret", "mariadb://u:s3cret@[bad/shop"]
)
def test_an_address_that_cannot_be_read_is_told_without_its_password(address: str) -> None:
    told = CliRunner().invoke(app, ["status", "--pipeline", "p", "--target", address])
    assert told.exit_code == 1, told.output
    assert told.output.startswith("error: --target: an address of ")
    assert "s3cret" not in told.output


def test_a_server_that_does_not_answer_is_asked_after_once() -> None:
    told = CliRunner().invoke(app, ["status", "--pipeline", "p", "--target", "postgresql://u@127.0.0.1:1/shop"])
    assert told.exit_code == 1, told.output
    assert "refused [op read pipeline, pipeline p] Hint: Is the server up" in told.output
    assert told.output.endswith("run it once more.\n")


@gated
def test_status_shows_every_channel_before_and_after_a_run(rig: Rig) -> None:
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 60) i", "UPDATE t SET v = 'b'")
    rig.run()
    told = json.loads(
        call(rig, "status", "--pipeline", rig.config.pipeline, "--log-url", rig.config.log_url, "--json").output
    )
    assert told["phase"] == "stopped"
    assert [channel["seqno"] for channel in told["channels"]] == [1, 1, 1]
    assert [channel["lag_transactions"] for channel in told["channels"]] == [0, 0, 0]
    assert sum(channel["rows"] for channel in told["channels"]) == 120
    assert {channel["state"] for channel in told["channels"]} == {"stopped"}
    shown = call(rig, "status", "--pipeline", rig.config.pipeline)
    assert "changes/s" in shown.output


@gated
def test_a_watched_status_outlasts_a_target_that_is_away(
    rig: Rig, target_server: PostgresServer, target_database: str
) -> None:
    rig.prepare()
    program = str(Path(sys.executable).parent / "parallel-apply")
    with subprocess.Popen(
        [program, "status", "--pipeline", rig.config.pipeline, "--target", rig.target_dsn, "--json", "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        first = watching.stdout.readline()
        assert json.loads(first)["pipeline"] == rig.config.pipeline
        execute(target_server.dsn(), f"ALTER DATABASE {target_database} ALLOW_CONNECTIONS false")
        assert watching.stderr.readline().startswith("not reachable, trying again: ")
        execute(target_server.dsn(), f"ALTER DATABASE {target_database} ALLOW_CONNECTIONS true")
        assert any(line == first for line in watching.stdout)
        watching.send_signal(signal.SIGINT)


def test_status_of_an_unknown_pipeline_is_one_clear_line(rig: Rig) -> None:
    told = call(rig, "status", "--pipeline", "nobody")
    assert told.exit_code == 1
    assert told.stderr.startswith("error: the target knows no such pipeline")
    assert len(told.stderr.splitlines()) == 1


def test_compare_ends_with_1_and_the_first_differing_keys(rig: Rig) -> None:
    rig.both("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 30) i")
    assert call(rig, "compare").exit_code == 0
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute("UPDATE t SET v = 'other' WHERE id = 17")
    different = call(rig, "compare")
    assert different.exit_code == 1
    assert "17" in different.output
    told = json.loads(call(rig, "compare", "--json").stdout)
    assert (told["equal"], told["tables"][0]["table"]) == (False, "public.t")


def test_a_stop_asked_while_a_run_opens_is_told_to_wait(rig: Rig) -> None:
    rig.prepare()
    with closing(open_pipeline(rig.target, rig.config.pipeline)) as session:
        state = session.state()
        assert state is not None
        session.acquire(LeaseRequest(log_id=state.log_id, owner="r", lease=timedelta(minutes=1)))
    told = " ".join(call(rig, "stop", "--pipeline", rig.config.pipeline).output.split())
    assert "the queue has no tasks of run r" in told
    assert "Clear" not in told


@gated
def test_a_stop_asked_before_the_lanes_start_stops_them_at_one_seqno(rig: Rig) -> None:
    from airflow_parallel_apply.pipeline import run
    from airflow_parallel_apply.router.plan import plan

    rig.prepare()
    for number in range(40):
        rig.write(f"INSERT INTO t VALUES ({number}, 'a')")
    rig.capture("r")
    plan(rig.config, rig.target)
    opened = run.open_run(rig.config, rig.source, rig.target, owner="r", run_id="r")
    told = call(rig, "stop", "--pipeline", rig.config.pipeline)
    assert told.exit_code == 0, told.output
    reports = rig.apply(opened)
    closed = run.close_run(opened, rig.config, rig.target, reports)
    assert f"seqno {closed.stop_seqno}" in told.output


@gated
def test_explain_draws_epochs_and_channels(rig: Rig) -> None:
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 60) i", "TRUNCATE t", "INSERT INTO t VALUES (1)")
    rig.capture("r")
    shown = CliRunner().invoke(router, ["explain", "--log-url", rig.config.log_url, "--channels", "3"])
    assert shown.exit_code == 0, shown.output
    assert "1 × truncate" in shown.output
    planned = CliRunner().invoke(
        router,
        ["plan", "--pipeline", rig.config.pipeline, "--log-url", rig.config.log_url, "--channels", "3", "--json"],
        env={"PARALLEL_APPLY_TARGET": rig.target_dsn},
    )
    assert json.loads(planned.output)["critical"] == 1


def test_explain_without_a_log_is_one_clear_line(tmp_path: Path) -> None:
    told = CliRunner().invoke(router, ["explain", "--log-url", str(tmp_path / "none")])
    assert told.exit_code == 1
    assert told.stderr.startswith("error: ")


@gated
def test_check_prints_whole_commands_and_exits_with_1_until_they_are_run(rig: Rig) -> None:
    arguments = ("check", "--pipeline", rig.config.pipeline, "--log-url", rig.config.log_url)
    assert call(rig, *arguments).exit_code == 0
    long = "a_column_whose_name_is_so_long_that_a_narrow_terminal_cannot_show"
    with psycopg.connect(rig.source_dsn) as connection:
        connection.execute(f"ALTER TABLE t ADD COLUMN {long[:60]} timestamp(3) with time zone")
    told = CliRunner().invoke(
        app,
        list(arguments),
        env={"PARALLEL_APPLY_SOURCE": rig.source_dsn, "PARALLEL_APPLY_TARGET": rig.target_dsn, "COLUMNS": "60"},
    )
    assert told.exit_code == 1
    command = f'ALTER TABLE "public"."t" ADD COLUMN "{long[:60]}" timestamp(3) with time zone;'
    assert command in told.output.splitlines()
    (finding,) = json.loads(call(rig, *arguments, "--json").output)["findings"]
    assert (finding["severity"], finding["side"], finding["where"]) == ("error", "target", "public.t")
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute(command)
    assert call(rig, *arguments).exit_code == 0
