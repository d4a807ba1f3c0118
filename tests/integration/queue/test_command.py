"""`python -m airflow_parallel_apply.queue` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest

from airflow_parallel_apply.queue import Insert, open_queue
from airflow_parallel_apply.queue.postgres import migrate
from airflow_parallel_apply.queue.postgres.statements import SCHEMA_VERSION
from tests.support.variants import gated


def run(*arguments: str, dsn: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARALLEL_APPLY")}
    if dsn is not None:
        environment["PARALLEL_APPLY_QUEUE_DSN"] = dsn
    return subprocess.run(
        [sys.executable, "-m", "airflow_parallel_apply.queue", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.fixture
def filled_dsn(target_dsn: str) -> str:
    migrate(target_dsn)
    queue = open_queue(target_dsn)
    queue.modify(
        claimant="maker",
        insert=[
            *(Insert(queue="p/1/channel/00", sequence=n, value={"epoch": n}) for n in range(3)),
            Insert(queue="other", value="[red]\tnot markup"),
        ],
    )
    queue.try_claim(["p/1/channel/00"], claimant="lane 1", lease=timedelta(minutes=5))
    queue.close()
    return target_dsn


@gated
def test_migrate_says_what_it_did_and_then_that_nothing_was_to_do(target_dsn: str) -> None:
    first = run("migrate", dsn=target_dsn)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines() == [
        "created schema parallel_apply",
        *(f"migrated the queue's tables in schema parallel_apply to version {n}" for n in range(1, SCHEMA_VERSION + 1)),
    ]
    assert "up to date" in run("migrate", dsn=target_dsn).stdout
    done = json.loads(run("migrate", "--schema", "second", "--json", dsn=target_dsn).stdout)
    assert done["schema"] == "second"
    assert len(done["done"]) == 1 + SCHEMA_VERSION


@gated
def test_queues_are_named_a_line_each(filled_dsn: str) -> None:
    assert run("queues", dsn=filled_dsn).stdout.splitlines() == ["other", "p/1/channel/00"]
    assert run("queues", "--prefix", "p/", dsn=filled_dsn).stdout.splitlines() == ["p/1/channel/00"]
    assert json.loads(run("queues", "--limit", "1", "--json", dsn=filled_dsn).stdout) == ["other"]


@gated
def test_stats_count_the_tasks(filled_dsn: str) -> None:
    assert run("stats", dsn=filled_dsn).stdout.splitlines() == [
        "queue\tsize\tclaimed\tavailable\tfuture\tmax_claims",
        "other\t1\t0\t1\t0\t0",
        "p/1/channel/00\t3\t1\t2\t0\t1",
    ]
    found = json.loads(run("stats", "--prefix", "p/", "--json", dsn=filled_dsn).stdout)
    assert found == [{"queue": "p/1/channel/00", "size": 3, "claimed": 1, "available": 2, "future": 0, "max_claims": 1}]
    assert json.loads(run("stats", "other", "--json", dsn=filled_dsn).stdout)[0]["queue"] == "other"


@gated
def test_tasks_are_listed_in_their_order(filled_dsn: str) -> None:
    found = json.loads(run("tasks", "p/1/channel/00", "--json", dsn=filled_dsn).stdout)
    assert [task["sequence"] for task in found] == [0, 1, 2]
    assert [task["claimant"] for task in found] == ["lane 1", None, None]
    assert [task["value"] for task in found] == [{"epoch": 0}, {"epoch": 1}, {"epoch": 2}]
    lines = run("tasks", "other", dsn=filled_dsn).stdout.splitlines()
    assert len(lines) == 2
    assert "[red] not markup" in lines[1]
    chosen = run("tasks", "p/1/channel/00", "--id", found[1]["task_id"], "--no-values", "--json", dsn=filled_dsn)
    assert [set(task) & {"sequence", "value"} for task in json.loads(chosen.stdout)] == [{"sequence"}]


@gated
def test_errors_are_one_line_and_have_their_exit_codes(target_dsn: str) -> None:
    missing_tables = run("stats", dsn=target_dsn)
    assert missing_tables.returncode == 1
    assert missing_tables.stderr.startswith("error: schema parallel_apply has no queue tables. Hint:")
    unreachable = run("tasks", "q", dsn="postgresql://me:s3cret@127.0.0.1:1/db")
    assert unreachable.returncode == 3
    assert "s3cret" not in unreachable.stderr
    for failed in (missing_tables, unreachable):
        assert len(failed.stderr.splitlines()) == 1
        assert failed.stdout == ""
    usage = run("stats", dsn=None)
    assert usage.returncode == 2
    assert "PARALLEL_APPLY_QUEUE_DSN" in usage.stderr


@gated
@pytest.mark.parametrize("verb", [[], ["migrate"], ["stats"], ["tasks"]])
def test_help_is_everywhere(verb: list[str]) -> None:
    done = run(*verb, "--help", dsn=None)
    assert done.returncode == 0
    assert "Usage: python -m airflow_parallel_apply.queue" in done.stdout
