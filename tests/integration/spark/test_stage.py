"""The apply stage through a real Spark, beside what every stage promises (tests/contract/test_stage.py)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import LogError, Unavailable
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.epoch import Branch, GroupPart, Unit
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.protocol import FileBranch, Store
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import (
    BATCH_BYTES,
    BATCH_LIMIT,
    UNMEASURED_BATCHES,
    ConnectAccess,
    close_session,
    leave_unmeasured,
    open_session,
    release_session,
)
from airflow_parallel_apply.spark.stage import SparkStage
from tests.support.in_memory.history import bucket_of
from tests.support.processes import files_below, holders_of, processes
from tests.support.staging import (
    KEYS,
    STAGING_SESSIONS,
    TRANSACTIONS,
    eventually,
    in_background,
    log_to_stage,  # noqa: F401  # a fixture
    staged_rows,
    target_of_staging,  # noqa: F401  # a fixture
    unit,
    unit_of,
    waiting_sessions,
)
from tests.support.variants import gated
from tests.support.written_log import Change, append, make_log


@pytest.fixture
def make_stage(
    spark_server: ServerLease, spark_session_id: str, target_dsn: str, log_url: str, target: PostgresTarget
) -> Iterator[Callable[..., SparkStage]]:
    stages = []

    def make(
        *, log_url: str = log_url, target: Endpoint | None = None, store: Store | None = None, **options: object
    ) -> SparkStage:
        log = open_reader(log_url)
        stage = SparkStage(
            access=ConnectAccess(url=spark_server.url, session_id=spark_session_id),
            log=log,
            store=store or LogStore(log),
            target=target or Endpoint(conn_id="t", url=target_dsn),
            **options,
        )
        stages.append(stage)
        return stage

    yield make
    for stage in stages:
        stage.close()


def test_a_large_unit_is_spread_over_tasks_and_no_key_over_two(make_stage, log_url, target_dsn):
    whole = unit(log_url, channels=1)
    small, large = make_stage(), make_stage(exchange_rows=100)
    one, several = small.stage(whole), large.stage(whole)
    assert len(one.tables) == 1
    assert len(several.tables) > 1
    assert sum(table.inserts for table in several.tables) == KEYS - 5
    assert staged_rows(target_dsn, several) == staged_rows(target_dsn, one)


@gated
@pytest.mark.parametrize("kind", [GroupPart(0, None), Branch(1)], ids=["of a group", "of its channel"])
def test_rows_that_are_all_one_channels_are_staged_in_even_parts(make_stage, tmp_path, target_dsn, kind):
    log_url = str(tmp_path / "hot")
    make_log(log_url)
    keys = [key for key in range(8000) if bucket_of(key) * 4 // BUCKET_COUNT == 1]
    append(log_url, 0, [[Change("I", key, "a")] for key in keys] + [[Change("U", key, "b")] for key in keys])
    whole = unit(log_url, channel=None, channels=4, last=2 * len(keys) - 1)
    stage = make_stage(log_url=log_url, exchange_rows=len(keys) // 2 + 1)
    staged = stage.stage(replace(whole, kind=kind))
    inserts = [table.inserts for table in staged.tables]
    assert len(inserts) == 4
    assert sum(inserts) == len(keys)
    assert max(inserts) < 1.2 * min(inserts)
    assert staged_rows(target_dsn, staged) == {str(key): ("I", "b") for key in keys}


@gated
def test_batches_are_measured_from_the_first_unit_with_wide_rows_on(
    make_stage, tmp_path, target_dsn, spark_server, spark_session_id
):
    log_url = str(tmp_path / "widening")
    make_log(log_url)
    for seqno, width in enumerate((10, 1000, 10)):
        append(log_url, seqno, [[Change("I", seqno, "w" * width)]])
    session = open_session(spark_server.url, spark_session_id)
    try:
        # Other tests share the session.
        leave_unmeasured(session)
        stage, found = make_stage(log_url=log_url), []
        for seqno in range(3):
            stage.stage(unit(log_url, channels=1, after=seqno - 1, last=seqno))
            found.append(session.conf.get(BATCH_LIMIT))
    finally:
        close_session(session)
    assert found == [UNMEASURED_BATCHES[BATCH_LIMIT], str(BATCH_BYTES), str(BATCH_BYTES)]


def test_a_new_session_of_the_embedded_server_measures_no_batches(spark_server):
    session_id = str(uuid4())
    session = open_session(spark_server.url, session_id)
    try:
        assert session.conf.get(BATCH_LIMIT) == UNMEASURED_BATCHES[BATCH_LIMIT]
    finally:
        close_session(session)
        release_session(spark_server.url, session_id)


def test_an_unreachable_target_is_told_as_such_without_a_java_trace(make_stage, log_url):
    stage = make_stage(target=Endpoint(conn_id="t", url="host=127.0.0.1 port=1 user=postgres dbname=t"))
    with pytest.raises(Unavailable) as told:
        stage.stage(unit(log_url))
    assert "org.apache" not in str(told.value)


def test_a_damaged_file_is_told_before_spark_reads_it(make_stage, log_url):
    (path,) = open_reader(log_url).row_files(-1, 10)
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    Path(path).chmod(0o600)
    Path(path).write_bytes(content)
    with pytest.raises(LogError, match="checksum"):
        make_stage().stage(unit_of(TRANSACTIONS))


@gated
def test_a_killed_python_worker_is_replaced_and_nothing_is_staged_twice(make_stage, log_url, target_dsn, spark_server):
    stage, whole = make_stage(), unit(log_url, channels=1)
    with psycopg.connect(target_dsn, autocommit=True) as blocker, psycopg.connect(target_dsn, autocommit=True) as other:
        with blocker.transaction():
            blocker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            staging = in_background(lambda: stage.stage(whole))
            eventually(lambda: waiting_sessions(other) > 0)
            os.kill(worker_of(other), signal.SIGKILL)
            eventually(lambda: waiting_sessions(other) > 0)
        staged = staging()
    assert len(staged_rows(target_dsn, staged)) == KEYS - 5
    assert [table.inserts for table in staged.tables] == [KEYS - 5]


def worker_of(connection: psycopg.Connection) -> int:
    """Return the process at the other end of a session that waits, as soon as there is one."""
    found: list[int] = []

    def is_found() -> bool:
        ports = connection.execute(f"SELECT client_port {STAGING_SESSIONS} AND wait_event_type = 'Lock'").fetchall()
        found.extend(pid for (port,) in ports for pid in holders(port, connection.info.port))
        return bool(found)

    eventually(is_found)
    return found[0]


def holders(local_port: int, remote_port: int) -> Iterator[int]:
    """Yield the processes that hold the TCP connection between two ports; other connections may have one of them."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(address.rpartition(":")[2], 16) for address in fields[1:3]] == [local_port, remote_port]:
            yield from holders_of([f"socket:[{fields[9]}]"])


def test_files_that_were_merged_and_removed_under_a_job_are_listed_anew(
    make_stage: Callable[..., SparkStage], log_url: str
) -> None:
    class Late(LogStore):
        """The store as a job saw it that runs only after its files are gone."""

        asked = 0

        def branch(self, unit: Unit, *, parts: int = 1) -> FileBranch:
            self.asked += 1
            found = super().branch(unit, parts=parts)
            if self.asked > 1:
                return found
            return replace(found, files=tuple(f"{path}.merged" for path in found.files))

    staged = make_stage(store=Late(open_reader(log_url))).stage(unit(log_url))
    assert staged.row_count == unit(log_url).row_count


@gated
def test_a_file_that_is_gone_for_good_is_told(make_stage: Callable[..., SparkStage], log_url: str) -> None:
    found = unit(log_url)
    stage = make_stage()
    assert stage.stage(found).tables
    (path,) = open_reader(log_url).row_files(-1, TRANSACTIONS)
    Path(path).unlink()
    with pytest.raises(LogError, match=r"is missing"):
        stage.stage(found)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310  # Spark's own, on loopback
        return str(answer.read().decode(errors="replace"))


@gated
def test_a_password_is_on_no_page_in_no_file_and_in_no_argument_of_the_embedded_spark(
    make_stage, log_url, target_dsn, spark_server: ServerLease, spark_directory: Path
) -> None:
    secret = "Tr0ub4dor-and-3"
    dsn = psycopg.conninfo.make_conninfo(target_dsn, password=secret)
    make_stage(target=Endpoint(conn_id="t", url=dsn)).stage(unit(log_url))
    ui = spark_server.ui_url
    (application,) = json.loads(page(f"{ui}/api/v1/applications"))
    api = f"{ui}/api/v1/applications/{application['id']}"
    pages = [f"{ui}/{name}/" for name in ("jobs", "stages", "storage", "environment", "executors", "SQL", "connect")]
    pages += [f"{api}/{name}" for name in ("jobs", "stages", "environment", "sql?details=true", "allexecutors")]
    texts = {url: page(url) for url in pages}
    assert "MapInArrow" in texts[f"{api}/sql?details=true"]
    for path in [*files_below(spark_directory), *(Path(f"/proc/{pid}/cmdline") for pid in processes())]:
        # Files and processes come and go meanwhile.
        with contextlib.suppress(OSError):
            texts[str(path)] = path.read_text(errors="replace")
    assert [where for where, text in texts.items() if secret in text] == []
    settings = dict(json.loads(texts[f"{api}/environment"])["sparkProperties"])
    # Its ports are open to everybody on the host; its pages are to look at, not to end jobs.
    assert (settings["spark.authenticate"], settings["spark.ui.killEnabled"]) == ("true", "false")
