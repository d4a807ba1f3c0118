"""The embedded Spark server lives as long as somebody uses it, and no part of it any longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.spark import session as session_module
from airflow_parallel_apply.spark.java import find_java
from airflow_parallel_apply.spark.layout import ServerSettings, server_layout
from airflow_parallel_apply.spark.server import ServerLease, connect_server, stop_server
from airflow_parallel_apply.spark.session import close_session, open_session, release_session, warm_up
from tests.support.processes import parent_of, processes
from tests.support.variants import gated

PATIENCE = 180.0
HOLD_A_LEASE = """
import sys, time
from pathlib import Path
from airflow_parallel_apply.spark.server import connect_server
with connect_server(directory=Path(sys.argv[1])) as lease:
    print(lease.state.server_pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop_server(directory=tmp_path)


def settings(idle: float) -> ServerSettings:
    return replace(ServerSettings.from_environment(), idle=timedelta(seconds=idle), memory="512m")


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def running(pid: int) -> bool:
    """A zombie has ended: nobody here is its parent."""
    return parent_of(pid) is not None


def family(pid: int) -> set[int]:
    """A process and everything below it."""
    children: dict[int, set[int]] = {}
    for process in processes():
        if (parent := parent_of(process)) is not None:
            children.setdefault(parent, set()).add(process)
    found, new = {pid}, {pid}
    while new:
        new = set().union(*(children.get(member, set()) for member in new)) - found
        found |= new
    return found


def with_python_workers(lease: ServerLease) -> set[int]:
    session = open_session(lease.url, str(uuid.uuid4()))
    try:
        warm_up(session)
    finally:
        close_session(session)
    members = family(lease.state.supervisor_pid)
    assert len(members) >= 4, "supervisor, JVM, Python daemon, worker"
    return members


@gated
def test_callers_at_the_same_time_share_one_server_which_goes_when_idle(directory):
    def call(_: int) -> int:
        with connect_server(settings=settings(1), directory=directory) as lease:
            return lease.state.server_pid

    with ThreadPoolExecutor(4) as callers:
        pids = set(callers.map(call, range(4)))
    assert len(pids) == 1
    assert eventually(lambda: not running(*pids))
    assert eventually(lambda: not server_layout(directory).work.exists())
    assert server_layout(directory).read_state() is None


@pytest.mark.long
def test_a_lease_keeps_an_idle_server_and_a_killed_holder_gives_it_back(directory):
    with connect_server(settings=settings(0.5), directory=directory) as lease:
        server = lease.state.server_pid
        holder = subprocess.Popen([sys.executable, "-c", HOLD_A_LEASE, str(directory)], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) == server
    lease_file = server_layout(directory).lease
    seen = lease_file.stat().st_mtime
    # The supervisor marks the lease as used while it is held: well past the idle time it still does.
    assert eventually(lambda: lease_file.stat().st_mtime > seen + 1.5)
    assert running(server)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert eventually(lambda: not running(server))


@pytest.mark.long
def test_nothing_survives_a_killed_supervisor_and_the_next_caller_starts_anew(directory):
    with connect_server(settings=settings(60), directory=directory) as lease:
        members = with_python_workers(lease)
        os.kill(lease.state.supervisor_pid, signal.SIGKILL)
        assert eventually(lambda: not any(map(running, members)))
        with connect_server(settings=settings(60), directory=directory) as other:
            assert other.state.server_pid != lease.state.server_pid
            with_python_workers(other)


@pytest.mark.long
def test_nothing_survives_a_killed_jvm_and_the_next_caller_starts_anew(directory):
    with connect_server(settings=settings(60), directory=directory) as lease:
        members = with_python_workers(lease)
        os.kill(lease.state.server_pid, signal.SIGKILL)
        assert eventually(lambda: not any(map(running, members)))
        with connect_server(settings=settings(60), directory=directory) as other:
            assert running(other.state.server_pid)


def test_only_its_user_can_read_the_token_and_nobody_finds_it_among_the_arguments(spark_server, spark_directory):
    layout = server_layout(spark_directory)
    assert layout.state.stat().st_mode & 0o077 == 0
    assert layout.directory.stat().st_mode & 0o077 == 0
    for pid in family(spark_server.state.supervisor_pid):
        assert spark_server.state.token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert spark_server.state.token not in repr(spark_server)
    with pytest.raises(ConfigurationError, match="token"):
        open_session(spark_server.url.replace("token=", "token=not"), str(uuid.uuid4()))


def test_the_server_listens_on_loopback_only(spark_server):
    inodes = set()
    for path in Path(f"/proc/{spark_server.state.server_pid}/fd").iterdir():
        target = path.readlink().name if path.is_symlink() else ""
        inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    listening = "0A"
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == listening and fields[9] in inodes:
                addresses.add(fields[1].rpartition(":")[0])
    assert addresses
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_a_released_session_is_dead_and_a_new_id_works(spark_server):
    session_id = str(uuid.uuid4())
    session = open_session(spark_server.url, session_id)
    release_session(spark_server.url, session_id)
    with pytest.raises(Unavailable, match="session is gone") as told:
        warm_up(session)
    assert told.value.hint == "Open one with a new id."
    close_session(session)
    close_session(open_session(spark_server.url, str(uuid.uuid4())))


@gated
def test_a_server_that_is_gone_is_told_within_seconds():
    started = time.monotonic()
    with pytest.raises(Unavailable):
        open_session("sc://localhost:1", str(uuid.uuid4()))
    assert time.monotonic() - started < 60


@pytest.mark.long
def test_a_server_that_stands_still_is_given_up(directory, monkeypatch):
    monkeypatch.setattr(session_module, "KEEPALIVE", dict.fromkeys(session_module.KEEPALIVE, 2000))
    with connect_server(settings=settings(60), directory=directory) as lease:
        session = open_session(lease.url, str(uuid.uuid4()))
        warm_up(session)
        os.kill(lease.state.server_pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable):
                warm_up(session)
        finally:
            os.kill(lease.state.server_pid, signal.SIGCONT)
        close_session(session)


def test_missing_java_is_one_line_that_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError) as told:
        find_java()
    assert "\n" not in str(told.value)
    assert "Install Java 17" in str(told.value)


def test_a_java_that_is_too_old_is_refused(monkeypatch, tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="version 11, too old"):
        find_java()


@gated
def test_a_server_that_cannot_start_is_told_with_its_own_words(directory):
    with (
        pytest.raises(Unavailable, match=r"ended while it started: .*Master must either be yarn"),
        connect_server(settings=replace(settings(idle=30), master="not-a-master"), directory=directory),
    ):
        pass
