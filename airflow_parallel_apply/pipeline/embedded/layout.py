"""The directory of an embedded server: its files, which only its user can read.

One directory for each user, installation and release of this package: another one's server is never touched, and a
server that runs is always one that this client can talk to. After an upgrade in place the former release's serves those
who began with it, and ends by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError

RUNTIME_DIR_VARIABLE: Final = "PARALLEL_APPLY_RUNTIME_DIR"

_PACKAGE: Final = "airflow-provider-parallel-apply"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayout:
    """The files of one server."""

    directory: Path

    @property
    def lease(self) -> Path:
        """Locked shared by who uses the server, for a moment exclusively by the supervisor that asks who does."""
        return self.directory / "lease"

    @property
    def supervisor(self) -> Path:
        """Locked exclusively as long as a supervisor lives: the kernel's word, no pid can be mistaken for it."""
        return self.directory / "supervisor"

    @property
    def state(self) -> Path:
        """Where the server listens; secrets included."""
        return self.directory / "state.json"

    @property
    def log(self) -> Path:
        """The server's messages."""
        return self.directory / "server.log"

    @property
    def output(self) -> Path:
        """The output of supervisor and server: nothing, unless they fail early."""
        return self.directory / "output.log"

    @property
    def work(self) -> Path:
        """The server's scratch, wiped at each start."""
        return self.directory / "work"

    def read_values(self) -> dict[str, Any] | None:
        """The values that a running server says of itself; None while there is none."""
        try:
            value = json.loads(self.state.read_text())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def write_values(self, values: dict[str, Any]) -> None:
        """Whole or not at all, readable by the user alone."""
        aside = self.state.with_suffix(".new")
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(values, file)
        aside.replace(self.state)

    def log_tail(self, limit: int = 600) -> str:
        """The last messages without Java's stack frames, in one line, for an error."""
        for path in (self.log, self.output):
            try:
                text = path.read_text(errors="replace").strip()
            except OSError:
                continue
            output = [line for line in text.splitlines() if not line.startswith("\tat ")]
            if output:
                return " | ".join(output)[-limit:]
        return "no message"


def host_directory(name: str, *, version: str = "", root: Path | None = None) -> Path:
    """The directory of this user's, installation's and release's server of a name, made (mode 0700). `version`: of what
    it serves, where another one may not be mistaken for it. Errors: `ConfigurationError`.
    """
    base = root or _runtime_root()
    identity = "\n".join([sys.executable, platform.python_version(), _release(), *filter(None, [version])])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    directory = base / "-".join(filter(None, [name, version, digest]))
    for path in (base, directory):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            f"directory {directory} is open to other users",
            op=name,
            hint=f"Remove it, or let {RUNTIME_DIR_VARIABLE} name a directory of your own.",
        )
    return directory


@cache
def _release() -> str:
    """That of the code of this process, whatever is installed meanwhile. Empty where the package is not installed, but
    only on the path.
    """
    try:
        return version_of(_PACKAGE)
    except PackageNotFoundError:
        return ""


def _runtime_root() -> Path:
    given = os.environ.get(RUNTIME_DIR_VARIABLE)
    if given:
        return Path(given).resolve()
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and Path(session).is_dir():
        return Path(session) / "parallel-apply"
    return Path(tempfile.gettempdir()) / f"parallel-apply-{os.getuid()}"
