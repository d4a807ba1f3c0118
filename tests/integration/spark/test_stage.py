"""The apply stage through a real Spark, from a real log into a real PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import LogError, OwnershipLost, TargetError, Unavailable
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Merging, Serial, StagedUnit, Unit
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from airflow_parallel_apply.pipeline.store.open import open_store
from airflow_parallel_apply.pipeline.store.protocol import FileBranch
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget
from airflow_parallel_apply.pipeline.target.postgres.naming import DEFAULT_SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.spark import stage as stage_module
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import SparkStage
from tests.support.written_log import TABLE, Change, append, make_log

TRANSACTIONS = 400
KEYS = 50
STAGING_SESSIONS = "FROM pg_stat_activity WHERE application_name LIKE 'pa:%:0:%' AND datname = current_database()"


@pytest.fixture
def log_url(tmp_path: Path) -> str:
    """Inserts, then updates of the same keys over and over, the last ones deleted."""
    url = str(tmp_path / "log")
    make_log(url)
    changes = [[Change("I", key, "first")] for key in range(KEYS)]
    changes += [[Change("U", number % KEYS, f"v{number}")] for number in range(TRANSACTIONS - KEYS - 5)]
    changes += [[Change("D", key)] for key in range(5)]
    append(url, 0, changes)
    return url


@pytest.fixture
def target(target_dsn: str) -> Iterator[PostgresTarget]:
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute(TABLE)
    found = PostgresTarget(Session(target_dsn, pipeline="demo", schema=DEFAULT_SCHEMA), relations=None)
    found.migrate()
    yield found
    found.close()


@pytest.fixture
def make_stage(
    spark_server: ServerLease, spark_session_id: str, target_dsn: str, log_url: str, target: PostgresTarget
) -> Iterator[Callable[..., SparkStage]]:
    stages = []

    def make(*, log_url: str = log_url, target: Endpoint | None = None, **options: object) -> SparkStage:
        stage = SparkStage(
            access=ConnectAccess(url=spark_server.url, session_id=spark_session_id),
            config=PipelineConfig(pipeline="demo", log_url=log_url),
            target=target or Endpoint(conn_id="t", url=target_dsn),
            **options,
        )
        stages.append(stage)
        return stage

    yield make
    for stage in stages:
        stage.close()


def unit(log_url: str, *, channel: int | None = 0, channels: int = 2, after: int = -1, last: int | None = None) -> Unit:
    last = TRANSACTIONS - 1 if last is None else last
    buckets = [
        bucket
        for batch in open_reader(log_url).rows(after, last, columns=["bucket"])
        for bucket in batch.column("bucket").to_pylist()
    ]
    lowest, highest = (0, 1023) if channel is None else bucket_range(channel, channels)
    return Unit(
        pipeline="demo",
        generation=1,
        kind=Serial() if channel is None else Branch(channel),
        channels=channels,
        token="token",
        after_seqno=after,
        last_seqno=last,
        row_count=sum(lowest <= bucket <= highest for bucket in buckets),
    )


def staged_rows(dsn: str, staged: StagedUnit) -> dict[str, tuple[str, str | None]]:
    found: dict[str, tuple[str, str | None]] = {}
    with psycopg.connect(dsn) as connection:
        for table in staged.tables:
            for row in connection.execute(f'SELECT * FROM parallel_apply."{table.staging}"'):
                found[str(row[1])] = (str(row[0]), row[2])
    return found


def test_two_channels_together_stage_the_net_change_of_every_key(make_stage, log_url, target_dsn):
    stage = make_stage()
    both = [stage.stage(unit(log_url, channel=channel)) for channel in (0, 1)]
    first, second = (staged_rows(target_dsn, staged) for staged in both)
    assert not first.keys() & second.keys()
    net = first | second
    assert sum(staged.row_count for staged in both) == TRANSACTIONS
    # Inserted and deleted inside the unit: nothing is left of them.
    assert sorted(map(int, net)) == list(range(5, KEYS))
    last = TRANSACTIONS - KEYS - 5
    assert net["20"] == ("I", f"v{max(number for number in range(last) if number % KEYS == 20)}")


def test_a_serial_unit_takes_the_fragnos_it_names_and_leaves_out_statements(make_stage, tmp_path, target_dsn, target):
    url = str(tmp_path / "serial")
    make_log(url)
    append(url, 0, [[Change("I", 1, "before"), Change("T"), Change("I", 2, "a"), Change("U", 2, "b"), Change("I", 3)]])
    serial = Unit(
        pipeline="demo",
        generation=1,
        kind=Serial(first_fragno=1, last_fragno=3),
        channels=4,
        token="token",
        after_seqno=-1,
        last_seqno=0,
        row_count=2,
    )
    staged = make_stage(log_url=url).stage(serial)
    assert staged_rows(target_dsn, staged) == {"2": ("I", "b")}


def test_the_unit_of_a_merge_point_takes_each_channels_rows_behind_its_own_position(make_stage, log_url, target_dsn):
    stage = make_stage()
    after = (KEYS - 1, 2 * KEYS + 3)
    apart = [unit(log_url, channel=channel, after=after[channel]) for channel in (0, 1)]
    together = replace(
        apart[0],
        kind=Merging(after),
        after_seqno=min(after),
        row_count=sum(part.row_count for part in apart),
    )
    merged = staged_rows(target_dsn, stage.stage(together))
    first, second = (staged_rows(target_dsn, stage.stage(part)) for part in apart)
    assert merged == first | second


def test_a_large_unit_is_spread_over_tasks_and_no_key_over_two(make_stage, log_url, target_dsn):
    whole = unit(log_url, channels=1)
    small, large = make_stage(), make_stage(exchange_rows=100)
    one, several = small.stage(whole), large.stage(whole)
    assert len(one.tables) == 1
    assert len(several.tables) > 1
    assert sum(table.inserts for table in several.tables) == KEYS - 5
    assert staged_rows(target_dsn, several) == staged_rows(target_dsn, one)


def test_a_unit_that_continues_another_knows_which_rows_existed(make_stage, log_url, target_dsn):
    staged = make_stage().stage(unit(log_url, channels=1, after=KEYS - 1))
    operations = {key: operation for key, (operation, _) in staged_rows(target_dsn, staged).items()}
    assert operations == {str(key): "D" if key < 5 else "U" for key in range(KEYS)}


def test_a_plan_that_counts_other_rows_than_the_log_holds_is_refused(make_stage, log_url):
    whole = unit(log_url, channels=1)
    with pytest.raises(LogError, match=f"found {TRANSACTIONS} rows where the plan has {TRANSACTIONS + 1}"):
        make_stage().stage(replace(whole, row_count=TRANSACTIONS + 1))


def test_a_value_that_the_target_refuses_names_table_column_and_seqno(make_stage, log_url, target_dsn):
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE t ALTER COLUMN v TYPE integer USING 0")
    with pytest.raises(TargetError) as told:
        make_stage().stage(unit(log_url, channels=1))
    error = told.value
    assert (error.pipeline, error.channel, error.table, error.column) == ("demo", 0, "public.t", "v")
    assert error.seqno is not None
    assert "\n" not in str(error)


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


def test_an_ended_session_under_a_claim_that_lasts_may_be_staged_again(make_stage, log_url, target_dsn):
    stage, whole = make_stage(), unit(log_url, channels=1)
    with psycopg.connect(target_dsn, autocommit=True) as blocker, psycopg.connect(target_dsn, autocommit=True) as other:
        # Whoever stages has to look at the table; this holds it up until its session has been ended.
        with blocker.transaction():
            blocker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            staging = in_background(lambda: stage.stage(whole))
            eventually(lambda: ended_sessions(other) > 0)
        with pytest.raises(Unavailable):
            staging()
    assert stage.stage(whole).row_count == TRANSACTIONS


def test_cancel_ends_the_job_and_the_stage_goes_on_with_the_next(make_stage, log_url, target_dsn):
    stage, whole = make_stage(), unit(log_url, channels=1)
    with psycopg.connect(target_dsn, autocommit=True) as blocker, psycopg.connect(target_dsn, autocommit=True) as other:
        blocker.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        staging = in_background(lambda: stage.stage(whole))
        eventually(lambda: waiting_sessions(other) > 0)
        stage.cancel()
        with pytest.raises(OwnershipLost, match="cancelled"):
            staging()
    assert stage.stage(whole).row_count == TRANSACTIONS


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


def unit_of(rows: int) -> Unit:
    return Unit(
        pipeline="demo",
        generation=1,
        kind=Branch(0),
        channels=1,
        token="token",
        after_seqno=-1,
        last_seqno=rows - 1,
        row_count=rows,
    )


def in_background(call: Callable[[], StagedUnit]) -> Callable[[], StagedUnit]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return lambda: future.result(timeout=180)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, "waited three minutes for nothing"
        time.sleep(0.02)


def waiting_sessions(connection: psycopg.Connection) -> int:
    return int(connection.execute(f"SELECT count(*) {STAGING_SESSIONS} AND wait_event_type = 'Lock'").fetchone()[0])


def ended_sessions(connection: psycopg.Connection) -> int:
    ended = f"SELECT count(pg_terminate_backend(pid)) {STAGING_SESSIONS} AND wait_event_type = 'Lock'"
    return int(connection.execute(ended).fetchone()[0])


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
            for path in Path("/proc").glob("[0-9]*/fd/*"):
                with contextlib.suppress(OSError):
                    if str(path.readlink()) == f"socket:[{fields[9]}]":
                        yield int(path.parts[2])


def test_files_that_were_merged_and_removed_under_a_job_are_listed_anew(
    make_stage: Callable[..., SparkStage], log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late:
        """The store as a job saw it that runs only after its files are gone."""

        def __init__(self, *found: object) -> None:
            self._store = open_store(*found)
            self._asked = 0

        def branch(self, unit: Unit) -> FileBranch:
            self._asked += 1
            found = self._store.branch(unit)
            if self._asked > 1:
                return found
            return replace(found, files=tuple(f"{path}.merged" for path in found.files))

    monkeypatch.setattr(stage_module, "open_store", Late)
    staged = make_stage().stage(unit(log_url))
    assert staged.row_count == unit(log_url).row_count


def test_a_file_that_is_gone_for_good_is_told(make_stage: Callable[..., SparkStage], log_url: str) -> None:
    found = unit(log_url)
    stage = make_stage()
    assert stage.stage(found).tables
    (path,) = open_reader(log_url).row_files(-1, TRANSACTIONS)
    Path(path).unlink()
    with pytest.raises(LogError, match=r"is missing"):
        stage.stage(found)


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  # Spark's own, on loopback
        return str(answer.read().decode(errors="replace"))


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
    for path in [*spark_directory.rglob("*"), *Path("/proc").glob("[0-9]*/cmdline")]:
        # Files and processes come and go meanwhile.
        with contextlib.suppress(OSError):
            texts[str(path)] = path.read_text(errors="replace")
    assert [where for where, text in texts.items() if secret in text] == []
    settings = dict(json.loads(texts[f"{api}/environment"])["sparkProperties"])
    # Its ports are open to everybody on the host; its pages are to look at, not to end jobs.
    assert (settings["spark.authenticate"], settings["spark.ui.killEnabled"]) == ("true", "false")
