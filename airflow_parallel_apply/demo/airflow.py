"""A whole Airflow on this machine for as long as it is needed: what `airflow standalone` is, but owned.

API server, scheduler (LocalExecutor), DAG processor and triggerer, each a process of one `Tree`, on SQLite (another
database is a setting), on a free port of the loopback interface, with a home directory of its own. Nothing of the
caller's Airflow settings comes in.

The schema of an empty database takes some seconds to make, so it is made once per Airflow version and copied.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, Self

import pendulum

from airflow_parallel_apply.demo.airflow_api import AirflowClient
from airflow_parallel_apply.demo.ports import free_port
from airflow_parallel_apply.demo.prefork import PIDS
from airflow_parallel_apply.demo.processes import MarkedProcess, Tree, is_alive
from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable

Service = Literal["api-server", "scheduler", "dag-processor", "triggerer"]
Settings = Mapping[str, Mapping[str, str]]

USERNAME: Final = "admin"
_PREFORK: Final = "airflow_parallel_apply.demo.prefork"
_START_TIMEOUT: Final = timedelta(minutes=5)
"""Long enough for a busy machine. A service that ends is reported at once."""
_STOP_PATIENCE: Final = timedelta(seconds=8)
_POLL_SECONDS: Final = 0.1
_KILL_SECONDS: Final = 10.0
_LOG_TAIL_BYTES: Final = 2000

# The slowest starts first: its import is the longest.
_COMMANDS: Final[Mapping[Service, tuple[str, ...]]] = {
    "api-server": ("api-server", "--host", "127.0.0.1"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
_HEALTH: Final[Mapping[Service, str]] = {
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowOptions:
    """Options with which an Airflow starts. `settings` are sections of airflow.cfg that add to, or replace, ours."""

    home: Path
    dags: Path
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)
    """URIs by connection id."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further variables that all processes, and so all tasks, see."""
    settings: Settings = field(default_factory=dict)
    cache: Path | None = None
    """Directory that keeps the empty database between starts; None makes it anew each time."""
    parallelism: int = 16
    """Task processes at the same time."""


class AirflowServices:
    """One Airflow. `start` once, then `kill` and `restart` single services, then `stop`, which leaves no process.

    Another thread may `stop` while `start` waits, which then raises `Unavailable`.
    """

    def __init__(self, options: AirflowOptions) -> None:
        self.options = options
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.password = secrets.token_urlsafe(12)
        self.tree = Tree()
        self.client = AirflowClient(self.base_url, username=USERNAME, password=self.password)
        self._pids: dict[Service, int] = {}
        self._launched: dict[Service, pendulum.DateTime] = {}

    def start(self, *, timeout: timedelta = _START_TIMEOUT) -> Self:
        """Make the home directory anew, start, and return when every service answers. Errors: `Unavailable`."""
        deadline = time.monotonic() + timeout.total_seconds()
        home = self.options.home
        shutil.rmtree(home, ignore_errors=True)
        (home / "services").mkdir(parents=True)
        _write_private(home / "airflow.cfg", self._configuration())
        _write_private(home / "passwords.json", json.dumps({USERNAME: self.password}))
        self._make_database(deadline)
        self._launch_all(deadline)
        self._wait_until_ready(tuple(_COMMANDS), deadline)
        return self

    def wait_for_dag(self, dag_id: str, *, timeout: timedelta = _START_TIMEOUT) -> None:
        """Wait until the DAG can be triggered. Errors: `ConfigurationError` with the traceback of a file that fails."""
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.client.has_dag(dag_id):
            for name, trace in self.client.import_errors().items():
                raise ConfigurationError(f"DAG file {name} does not load: {trace.strip()[-1000:]}", op="airflow")
            if time.monotonic() > deadline:
                raise Unavailable(f"DAG {dag_id} did not appear", op="airflow", hint=f"See {self.log('dag-processor')}")
            time.sleep(_POLL_SECONDS)

    def log(self, service: str) -> Path:
        """The file to which a service writes its messages."""
        return self.options.home / "services" / f"{service}.log"

    def pid(self, service: Service) -> int:
        """The id of the service's first process."""
        return self._pids[service]

    def processes(self) -> tuple[MarkedProcess, ...]:
        """Every living process that came of this Airflow: services, task processes, and what tasks started."""
        return self.tree.processes()

    def environment(self) -> dict[str, str]:
        """The environment of every process of this Airflow, and of a command that is to talk to it."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        return {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "AIRFLOW_HOME": str(self.options.home),
            **{f"AIRFLOW_CONN_{name.upper()}": uri for name, uri in self.options.connections.items()},
            **self.options.environment,
        }

    def kill(self, service: Service) -> None:
        """As a crash: kill -9 of the service's first process. What it had started goes on."""
        pid = self._pids.pop(service)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _KILL_SECONDS
        while is_alive(pid):
            if time.monotonic() > deadline:
                raise Unavailable(f"Airflow's {service} (pid {pid}) outlives a kill -9", op="airflow")
            time.sleep(_POLL_SECONDS)

    def restart(self, service: Service, *, timeout: timedelta = _START_TIMEOUT) -> None:
        """Start a killed service again, and wait until it works."""
        self._launched[service] = pendulum.now("UTC")
        self._pids[service] = self._launch(service, "-m", "airflow", *_COMMANDS[service]).pid
        self._wait_until_ready((service,), time.monotonic() + timeout.total_seconds())

    def stop(self, *, patience: timedelta = _STOP_PATIENCE) -> None:
        """Ask the services to end, and after `patience` end everything that is left, orphans too."""
        self.client.close()
        self.tree.end(patience=patience)
        self._pids.clear()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _configuration(self) -> str:
        home = self.options.home
        ours: dict[str, dict[str, str]] = {
            "core": {
                "dags_folder": str(self.options.dags),
                "load_examples": "False",
                "executor": "LocalExecutor",
                "parallelism": str(self.options.parallelism),
                "dags_are_paused_at_creation": "False",
                "fernet_key": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "execution_api_server_url": f"{self.base_url}/execution/",
                "simple_auth_manager_users": f"{USERNAME}:admin",
                "simple_auth_manager_passwords_file": str(home / "passwords.json"),
            },
            "database": {"sql_alchemy_conn": f"sqlite:///{home / 'airflow.db'}"},
            "logging": {"base_log_folder": str(home / "logs")},
            "api": {
                "base_url": self.base_url,
                "host": "127.0.0.1",
                "port": str(self.port),
                "workers": "1",
                "secret_key": secrets.token_urlsafe(32),
                "expose_config": "False",
                "default_wrap": "True",
            },
            "api_auth": {"jwt_secret": secrets.token_urlsafe(48)},
            # A task starts when the scheduler looks: it looks often, since a person watches, but each look costs.
            "scheduler": {"scheduler_idle_sleep_time": "0.4", "enable_health_check": "False"},
            "dag_processor": {"refresh_interval": "30", "parsing_processes": "1"},
            "usage_data_collection": {"enabled": "False"},
        }
        for section, values in self.options.settings.items():
            ours.setdefault(section, {}).update(values)
        # Airflow interpolates: a percent sign in a path is written twice.
        return "".join(
            f"[{section}]\n" + "".join(f"{name} = {value.replace('%', '%%')}\n" for name, value in values.items())
            for section, values in ours.items()
        )

    def _launch(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self.tree.launch(
            [sys.executable, *arguments],
            environment=self.environment(),
            log=self.log(name),
            directory=self.options.home,
        )

    def _launch_all(self, deadline: float) -> None:
        folder = self.options.home / "services"
        began = pendulum.now("UTC")
        prefork = self._launch("prefork", "-m", _PREFORK, str(folder), json.dumps(_COMMANDS))
        while not (folder / PIDS).exists():
            if prefork.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"Airflow did not start: {self._tail('prefork')}", op="airflow")
            time.sleep(_POLL_SECONDS)
        self._pids.update(json.loads((folder / PIDS).read_text()))
        self._launched.update(dict.fromkeys(_COMMANDS, began))

    def _make_database(self, deadline: float) -> None:
        ours = self.options.home / "airflow.db"
        cache = self.options.cache
        empty = None if cache is None else cache / f"airflow-{version('apache-airflow-core')}.db"
        if empty is not None and empty.exists():
            shutil.copyfile(empty, ours)
            return
        migration = self._launch("db", "-m", "airflow", "db", "migrate")
        try:
            code = migration.wait(timeout=max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            code = -1
        if code != 0:
            raise Unavailable(f"airflow db migrate failed: {self._tail('db')}", op="airflow")
        if empty is not None:
            empty.parent.mkdir(parents=True, exist_ok=True)
            draft = empty.with_suffix(f".{os.getpid()}")
            shutil.copyfile(ours, draft)
            draft.replace(empty)

    def _wait_until_ready(self, services: tuple[Service, ...], deadline: float) -> None:
        missing = list(services)
        while True:
            missing = [service for service in missing if not self._is_ready(service)]
            if not missing:
                return
            for service in missing:
                if not is_alive(self._pids[service]):
                    raise Unavailable(f"Airflow's {service} ended: {self._tail(service)}", op="airflow")
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"Airflow's {' and '.join(missing)} did not answer in time",
                    op="airflow",
                    hint="The machine may be too busy: try again when it is not. "
                    f"The last messages of {missing[0]}: {self._tail(missing[0])}",
                )
            time.sleep(_POLL_SECONDS)

    def _is_ready(self, service: Service) -> bool:
        """True if the service answers, or has written a heartbeat since its launch: an older one may be its
        predecessor's.
        """
        try:
            health = self.client.health()
            if service == "api-server":
                # The tasks' side of the API builds its routes at the first request, for seconds, on a busy machine for
                # longer than a request lasts: not at the first task's.
                self.client.wake_execution_api()
                return True
        except Unavailable:
            return False
        name = _HEALTH[service]
        beat = health[name].get(f"latest_{name}_heartbeat")
        return beat is not None and datetime.fromisoformat(beat) >= self._launched[service]

    def _tail(self, service: str) -> str:
        log = self.log(service)
        return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() if log.exists() else ""


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)
