"""Somebody at the source who waits for a copy to end, and behind whom the copy itself has to wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

import psycopg
import pytest

from airflow_parallel_apply.pipeline.apply import retry
from airflow_parallel_apply.pipeline.copy.postgres import load
from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder
from airflow_parallel_apply.pipeline.errors import Unavailable
from tests.support.copying import copying_rig, require_equal
from tests.support.local_copier import LocalCopier

_WAITING = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"


def test_a_copy_that_waits_behind_who_waits_for_it_names_them_and_goes_on_without_them(
    source_dsn: str, target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_LOCK_TIMEOUT", "100ms")
    monkeypatch.setattr(retry, "_GIVE_UP_SECONDS", 0.0)
    rig = copying_rig(source_dsn, target_dsn, tmp_path, monkeypatch)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.write("INSERT INTO t VALUES (1), (2)")
    behind: list[tuple[int, Thread]] = []

    class Truncated(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            behind.append(_truncate(source_dsn))
            super().copy(order, parts)

    with pytest.raises(Unavailable, match="the copy waits behind them") as refused:
        replace(rig, copier=lambda rig: Truncated(source=rig.source, target=rig.target)).prepare()
    ((pid, truncating),) = behind
    assert f"session {pid} (public.t). End it at the source (SELECT pg_cancel_backend({pid}))" in str(refused.value)
    # It held the copy up, and the copy it.
    truncating.join(timeout=60)
    rig.write("INSERT INTO t VALUES (3)")
    rig.run()
    require_equal(rig)


def _truncate(dsn: str) -> tuple[int, Thread]:
    """Begin to empty the table; returns once that waits for its lock."""
    connection = psycopg.connect(dsn, autocommit=True)
    pid = connection.info.backend_pid

    def truncate() -> None:
        with connection:
            connection.execute("TRUNCATE t")

    thread = Thread(target=truncate, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    with psycopg.connect(dsn, autocommit=True) as looking:
        while looking.execute(_WAITING, [pid]).fetchone() is None:
            assert time.monotonic() < deadline, "nobody holds the table"
    return pid, thread
