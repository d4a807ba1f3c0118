"""A directory or a lake in a bucket of a local S3 server, which is a process of its own and lives."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyarrow import fs

from tests.hunt.targets.alterations import Alteration
from tests.hunt.targets.judging import unequal_tables
from tests.support.rig import Rig

_SECONDS = 60


class StruckBucket:
    """Implements `HuntedTarget`, as far as a history of two tables needs it."""

    def __init__(self, scheme: str, directory: Path, *, options: str = "") -> None:
        del directory
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self._url = f"{scheme}://key:secret@lake/demo?region=us-east-1&endpoint_url=http://{self._address}"
        self._url += f"&{options}" if options else ""
        port = self._address.rpartition(":")[2]
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.failing_s3", port],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    @property
    def url(self) -> str:
        return self._url

    def fresh(self) -> None:
        """An empty bucket, as soon as the server answers."""
        files = fs.S3FileSystem(
            access_key="key", secret_key="secret", endpoint_override=self._address, scheme="http",
            allow_bucket_creation=True, allow_bucket_deletion=True,
        )  # fmt: skip
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                files.create_dir("lake")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise

    def crash(self) -> None:
        """It lives."""

    def keep(self) -> None: ...

    def restore(self) -> None: ...

    def differences(self, rig: Rig) -> list[str]:
        return unequal_tables(rig)

    def run(self, statements: Sequence[str]) -> str:
        return ""

    def alter(self, rig: Rig, alterations: Sequence[Alteration]) -> str:
        return ""

    def follow(self, told: str) -> str:
        return ""

    def begin_anew(self) -> None:
        self.fresh()

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()
