"""`airflow dags test`, as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]


class Airflow:
    """An Airflow home with connections, and `airflow dags test` in it, each run a process of its own."""

    def __init__(self, home: Path, connections: dict[str, str], more: dict[str, str] | None = None) -> None:
        self.home = home
        variables = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        named = {f"AIRFLOW_CONN_{conn_id.upper()}": uri for conn_id, uri in connections.items()}
        self.environment = {**variables, "AIRFLOW_HOME": str(home), **named, **(more or {})}

    def migrate(self) -> None:
        dags = f"[core]\ndags_folder = {REPOSITORY / 'dags'}\nload_examples = False\n"
        (self.home / "airflow.cfg").write_text(dags)
        self._airflow("db", "migrate")

    def run(self, **conf: Any) -> str:
        """Run the DAG; its output. An exit code other than 0 fails the test."""
        return self._airflow("dags", "test", "parallel_apply", "--conf", json.dumps(conf))

    def refused(self, **conf: Any) -> str:
        """Run the DAG, which must end red; its output."""
        with pytest.raises(subprocess.CalledProcessError) as raised:
            self.run(**conf)
        return str(raised.value.stdout) + str(raised.value.stderr)

    def _airflow(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.home,
        )
        print(done.stdout, done.stderr)
        done.check_returncode()
        return done.stdout + done.stderr
