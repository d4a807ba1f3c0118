"""Servers whose data directories are copies: a session of tests makes each cluster once, for all of its processes.

`initdb` costs more than most tests do. A copy has its cluster's system identifier, by which pipelines know a server:
servers that meet must be copies of different clusters.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from airflow_parallel_apply.demo.child import let_through
from airflow_parallel_apply.demo.postgres import PostgresServer
from tests.support.memory_directory import memory_directory

_PLACE: Final = "PARALLEL_APPLY_TEST_CLUSTERS"
_turns = cycle(("one", "another", "a third"))


def share_clusters(config: pytest.Config) -> None:
    """Have this process, and those that it starts, share clusters until the session ends."""
    place = memory_directory("clusters")
    config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))
    os.environ[_PLACE] = str(place)


class CopiedServer(PostgresServer):
    """A copy of the cluster of this name; by default of another one than the two servers that were made before."""

    def __init__(
        self, directory: Path, *, version: int = 18, settings: Mapping[str, str] | None = None, cluster: str = ""
    ) -> None:
        super().__init__(directory, version=version, settings=settings)
        self._version = version
        self._cluster = f"{cluster or next(_turns)} of version {version}"

    def make(self) -> None:
        place = os.environ.get(_PLACE)
        if place is None:
            super().make()
        elif not (self.directory / "PG_VERSION").exists():
            # With its owner, which is another user's where the tests run as root.
            subprocess.run(["cp", "-a", self._made_once(Path(place)), self.directory], check=True)
            let_through(self.directory)

    def _made_once(self, place: Path) -> Path:
        found = place / self._cluster
        with (place / f"{self._cluster}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not found.exists():
                aside = PostgresServer(place / f"{self._cluster}.part", version=self._version)
                aside.make()
                aside.directory.rename(found)
        return found
