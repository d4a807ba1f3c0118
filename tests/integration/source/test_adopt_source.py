"""Another server in the place of a pipeline's source: upgraded, or promoted."""

from __future__ import annotations

import os
import pwd
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.capture.adoption import adopt_source, release_source
from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError, SourceError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.writing import open_writer
from tests.integration.source.replaced import SETTINGS, at, goes_on, rig_that_ran, server_of_source, servers_of_test  # noqa: F401  # fixtures
from tests.support.clusters import CopiedServer
from tests.support.rig import Rig, execute
from tests.support.variants import gated


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


def pretend_another_server(rig: Rig) -> None:
    """The log takes a server for its source that this one is not."""
    writer = open_writer(rig.config.log_url)
    registration = str(writer.state().registration)
    own = rig.rows("SELECT system_identifier::text FROM pg_control_system()", side="source")[0][0]
    writer.adopt("1")
    writer.register(registration.replace(own, "1"), 0)
    writer.commit(writer.state().captured_offset)
