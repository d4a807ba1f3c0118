"""Another server in the place of a pipeline's source: upgraded, or promoted."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.capture.adoption import adopt_source, release_source
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, SourceError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.finding import Side
from tests.support.clusters import CopiedServer
from tests.support.rig import Rig, execute
from tests.support.variants import gated

SETTINGS = {"shared_buffers": "16MB", "max_wal_size": "64MB", "autovacuum": "off", "wal_level": "logical"}
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "CREATE TABLE parted (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
)


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def source(servers: ExitStack, tmp_path: Path) -> PostgresServer:
    return servers.enter_context(CopiedServer(tmp_path / "source", settings=SETTINGS))


@pytest.fixture
def rig(source: PostgresServer, target_dsn: str, tmp_path: Path) -> Rig:
    """A pipeline that ran, with a transaction that the slot keeps in front of it."""
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=2,
        lanes=1,
        tables=TablePatterns(include=("public.*",)),
    )
    rig = Rig(config=config, source_dsn=source.dsn(), target_dsn=target_dsn)
    rig.both(*TABLES)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')", "INSERT INTO parted VALUES (1, 'a')")
    rig.run()
    return rig


def at(rig: Rig, server: PostgresServer) -> Rig:
    return Rig(config=rig.config, source_dsn=server.dsn(), target_dsn=rig.target_dsn)


def command(rig: Rig, *options: str) -> str:
    done = CliRunner().invoke(
        app,
        ["adopt-source", "--pipeline", "p", "--source", rig.source_dsn, "--log-url", rig.config.log_url, *options],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    return done.output


def upgraded(servers: ExitStack, source: PostgresServer, tmp_path: Path) -> tuple[PostgresServer, str]:
    """pg_upgrade from the stopped source into a new cluster, and what it said; the caller starts the new one."""
    new = CopiedServer(tmp_path / "upgraded", settings=SETTINGS)
    new.start()
    new.stop()
    servers.callback(new.stop)
    user = pwd.getpwuid(source.directory.stat().st_uid)
    # Not below `tmp_path`: a socket's path has 107 bytes at most.
    place = Path(servers.enter_context(TemporaryDirectory(prefix="upgrade", dir="/tmp")))
    os.chown(place, user.pw_uid, user.pw_gid)
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    paths = [f"--{side}-{kind}" for side in ("old", "new") for kind in ("bindir", "datadir")]
    values = [source.bin_path, source.directory, new.bin_path, new.directory]
    arguments = [part for path, value in zip(paths, values, strict=True) for part in (path, str(value))]
    done = subprocess.run(
        [
            str(new.bin_path / "pg_upgrade"), *arguments, "--username=postgres", f"--socketdir={place}",
            f"--old-port={source.port}", f"--new-port={new.port}", "-o", options, "-O", options,
        ],
        cwd=place,
        user=user.pw_uid if os.getuid() == 0 else None,
        group=user.pw_gid if os.getuid() == 0 else None,
        extra_groups=[] if os.getuid() == 0 else None,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    told = done.stdout + done.stderr
    for path in new.directory.rglob("pg_upgrade_output.d/**/*.txt"):
        told += path.read_text()
    return new, told if done.returncode else ""


@pytest.mark.long
def test_an_upgraded_source_is_adopted_and_goes_on(
    servers: ExitStack, source: PostgresServer, rig: Rig, tmp_path: Path
) -> None:
    source.stop()
    _, trouble = upgraded(servers, source, tmp_path)
    assert "has not consumed the WAL" in trouble
    source.start()
    command(rig, "--before-upgrade")
    source.stop()
    new, trouble = upgraded(servers, source, tmp_path)
    assert not trouble
    new.start()
    rig = at(rig, new)
    rig.write("VACUUM FULL t", "INSERT INTO t VALUES (2, 'b')", "UPDATE parted SET v = 'c'")
    with pytest.raises(LogError) as refused:
        rig.run()
    assert "adopt-source" in str(refused.value.hint)
    assert "in the place of" in command(rig)
    assert "already" in command(rig)
    goes_on(rig)


@pytest.mark.long
def test_an_upgraded_source_whose_slot_was_made_by_hand_is_not_adopted(
    servers: ExitStack, source: PostgresServer, rig: Rig, tmp_path: Path
) -> None:
    release_source(rig.source, rig.config)
    rig.write("INSERT INTO t VALUES (2, 'lost')", "SELECT pg_drop_replication_slot('parallel_apply_p')")
    source.stop()
    new, trouble = upgraded(servers, source, tmp_path)
    assert not trouble
    new.start()
    rig = at(rig, new)
    with pytest.raises(SourceError, match="is not at"):
        adopt_source(rig.source, rig.config)
    rig.write("SELECT pg_create_logical_replication_slot('parallel_apply_p', 'pgoutput')")
    with pytest.raises(SourceError, match="lacks the FAILOVER") as refused:
        adopt_source(rig.source, rig.config)
    assert "start=copy" in str(refused.value.hint)


@gated
def test_a_server_proves_itself_by_the_transaction_that_the_log_has_last(rig: Rig) -> None:
    pretend_another_server(rig)
    with pytest.raises(LogError, match="another source's log"):
        rig.run()
    rig.write("INSERT INTO t VALUES (2, 'b')")
    adopted = adopt_source(rig.source, rig.config)
    assert adopted.is_new
    assert open_reader(rig.config.log_url).state().adopted_server == adopted.server
    goes_on(rig)


@gated
def test_values_that_were_altered_before_an_upgraded_server_was_adopted_are_in_doubt(rig: Rig) -> None:
    release_source(rig.source, rig.config)
    pretend_another_server(rig)
    rig.write("ALTER TABLE t ALTER v TYPE varchar(9) USING v || '!'", "VACUUM FULL parted_1")
    adopt_source(rig.source, rig.config)
    for _ in range(2):
        with pytest.raises(SourceError, match=r"public\.t was rewritten while .*recopy \S+ p --table public\.t`"):
            rig.run()
    execute(rig.target_dsn, "ALTER TABLE t ALTER v TYPE varchar(9)")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda _: None)
    goes_on(rig)


def test_the_source_of_a_log_without_transactions_is_its_source_already(rig: Rig, tmp_path: Path) -> None:
    rig.both("CREATE TABLE new (id int PRIMARY KEY)")
    new = rig.having(pipeline="q", log_url=str(tmp_path / "q"), tables=TablePatterns(include=("public.new",)))
    new.prepare()
    adopted = adopt_source(new.source, new.config)
    assert not adopted.is_new
    assert "no transaction of it yet" in adopted.proof
    pretend_another_server(new)
    with pytest.raises(SourceError, match=r"no transaction of its source by which .* prove itself"):
        adopt_source(new.source, new.config)


@gated
def test_a_source_that_was_upgraded_already_is_adopted_without_the_option_as_the_hint_says(rig: Rig) -> None:
    pretend_another_server(rig)
    with pytest.raises(ConfigurationError, match="Leave --before-upgrade out"):
        release_source(rig.source, rig.config)
    adopt_source(rig.source, rig.config)
    goes_on(rig)


@gated
def test_another_server_with_another_history_is_refused_by_what_it_lacks(rig: Rig) -> None:
    pretend_another_server(rig)
    before = open_reader(rig.config.log_url).state()
    slot = "'parallel_apply_p'"
    rig.write(
        f"SELECT pg_drop_replication_slot({slot})",
        "INSERT INTO t VALUES (2, 'lost')",
        f"SELECT pg_create_logical_replication_slot({slot}, 'pgoutput')",
    )
    with pytest.raises(SourceError, match="above what the log has"):
        adopt_source(rig.source, rig.config)
    rig.write(f"SELECT pg_drop_replication_slot({slot})")
    with pytest.raises(SourceError, match="is not at"):
        adopt_source(rig.source, rig.config)
    rig.write("COMMENT ON PUBLICATION parallel_apply_p IS NULL")
    with pytest.raises(ConfigurationError, match="publication"):
        adopt_source(rig.source, rig.config)
    assert open_reader(rig.config.log_url).state() == before


@gated
def test_the_slot_is_moved_only_behind_what_the_log_has(rig: Rig) -> None:
    rig.write("INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(SourceError, match="lacks changes") as refused:
        release_source(rig.source, rig.config)
    assert "run the pipeline once more" in str(refused.value.hint)
    rig.run()
    with psycopg.connect(f"{rig.source_dsn} replication=database", autocommit=True) as old:
        old.execute("ALTER_REPLICATION_SLOT parallel_apply_p (FAILOVER false)")
    with psycopg.connect(rig.source_dsn) as slow:
        slow.execute("INSERT INTO t VALUES (10, 'began before')")
        released = release_source(rig.source, rig.config)
    confirmed = "SELECT (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots"
    assert rig.rows(confirmed, side="source") == [(released.offset,)]
    assert rig.rows("SELECT failover FROM pg_replication_slots", side="source") == [(True,)]
    goes_on(rig)


@gated
@pytest.mark.parametrize("former_releases", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_slot_that_was_to_move_and_did_not_proves_itself_as_ever(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, former_releases: int
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(former_releases):
        release_source(rig.source, rig.config)
        rig.write("CREATE TABLE IF NOT EXISTS elsewhere (id int)", "DROP TABLE elsewhere")
    monkeypatch.setattr("airflow_parallel_apply.pipeline.source.postgres.setup.adoption.lsn_text", killed)
    with pytest.raises(KeyboardInterrupt):
        release_source(rig.source, rig.config)
    monkeypatch.undo()
    assert len(open_reader(rig.config.log_url).state().released) == 1 + former_releases
    goes_on(rig)
    assert open_reader(rig.config.log_url).state().released == ()


@pytest.mark.long
def test_a_promoted_standby_with_a_synchronized_slot_goes_on_by_itself(
    servers: ExitStack, source: PostgresServer, rig: Rig, tmp_path: Path
) -> None:
    standby = standby_of(servers, source, rig, tmp_path)
    rig.write("INSERT INTO t VALUES (50, 'not captured before')")
    wait_until(lambda: rows_at(standby, "SELECT 1 FROM t WHERE id = 50") == [(1,)])
    source.kill()
    execute(standby.dsn(), "SELECT pg_promote()")
    rig = at(rig, standby)
    assert not adopt_source(rig.source, rig.config).is_new
    goes_on(rig)


@pytest.mark.long
@pytest.mark.parametrize("writes", [0, 30])
def test_a_promoted_standby_that_is_behind_the_log_is_refused_and_a_new_start_ends_equal(
    servers: ExitStack, source: PostgresServer, rig: Rig, tmp_path: Path, writes: int
) -> None:
    standby = standby_of(servers, source, rig, tmp_path)
    standby.stop()
    rig.write("INSERT INTO t VALUES (50, 'captured, and lost')", "DELETE FROM parted")
    rig.run()
    source.kill()
    standby.start()
    execute(standby.dsn(), "SELECT pg_promote()")
    rig = at(rig, standby)
    rig.write(*(f"INSERT INTO t VALUES ({number}, 'later')" for number in range(200, 200 + writes)))
    for _ in range(2):
        with pytest.raises((SourceError, ConfigurationError), match=r"restored|replaced") as refused:
            rig.run()
    for step in ("parallel-apply drop", "empty the target's tables", "a new log_url", "start=copy"):
        assert step in str(refused.value.hint)
    with pytest.raises(SourceError, match=r"restored|replaced"):
        adopt_source(rig.source, rig.config)
    removal = drop_pipeline("p", rig.source, rig.target, log_url=rig.config.log_url)
    assert not [left for left in removal.left if left.side is not Side.LOG]
    execute(rig.target_dsn, "TRUNCATE t, parted")
    goes_on(rig.having(log_url=str(tmp_path / "new log"), start=Start.COPY))


def standby_of(servers: ExitStack, source: PostgresServer, rig: Rig, tmp_path: Path) -> PostgresServer:
    """A physical standby that keeps the pipeline's slot and has all that the source has."""
    directory = tmp_path / "standby"
    rig.write("SELECT pg_create_physical_replication_slot('standby', true)")
    source.run("pg_basebackup", "--pgdata", str(directory), "--checkpoint=fast", "--no-sync", "--write-recovery-conf")
    owner = source.directory.stat()
    for path in (directory, *directory.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    settings = {
        "primary_conninfo": f"{source.dsn()}",
        "primary_slot_name": "standby",
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
    }
    standby = servers.enter_context(CopiedServer(directory, settings={**SETTINGS, **settings}))
    rig.write("INSERT INTO t VALUES (20, 'at both')")
    rig.run()
    kept = "SELECT 1 FROM pg_replication_slots WHERE synced AND NOT temporary"
    wait_until(lambda: rows_at(standby, kept) == [(1,)])
    written = rig.rows("SELECT pg_current_wal_flush_lsn()::text", side="source")[0][0]
    wait_until(lambda: rows_at(standby, f"SELECT pg_last_wal_replay_lsn() >= '{written}'") == [(True,)])
    return standby


def rows_at(server: PostgresServer, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn()) as connection:
        return connection.execute(query).fetchall()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def pretend_another_server(rig: Rig) -> None:
    """The log takes a server for its source that this one is not."""
    writer = open_writer(rig.config.log_url)
    registration = str(writer.state().registration)
    own = rig.rows("SELECT system_identifier::text FROM pg_control_system()", side="source")[0][0]
    writer.adopt("1")
    writer.register(registration.replace(own, "1"), 0)
    writer.commit(writer.state().captured_offset)


def goes_on(rig: Rig) -> None:
    """Green and equal, again and again, each table by several changes."""
    for number in range(100, 103):
        rig.write(
            f"INSERT INTO t VALUES ({number}, 'd')",
            f"INSERT INTO parted VALUES ({number}, 'd')",
            f"UPDATE parted SET v = '{number}' WHERE id = 1",
        )
        rig.run()
        assert same(rig)


def same(rig: Rig) -> bool:
    queries = ("SELECT * FROM t ORDER BY id", "SELECT * FROM parted ORDER BY id")
    return all(rig.rows(query) == rig.rows(query, side="source") for query in queries)
