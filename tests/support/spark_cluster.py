"""A standalone Spark cluster on this machine: a master and workers, in the environment of the tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import pyspark

from airflow_parallel_apply.spark.layout import JAVA_VARIABLE

CONNECT_SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
HOME: Final = Path(pyspark.__file__).parent
QUICKLY: Final = os.environ[JAVA_VARIABLE]
"""As the tests tell embedded servers too: compiled quickly rather than well, since no JVM of a test lives long."""
SETTINGS: Final = {
    "spark.executor.extraJavaOptions": QUICKLY,
    "spark.driver.extraJavaOptions": QUICKLY,
    "spark.executor.memory": "500m",
    "spark.driver.memory": "600m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Small, and for the loopback interface only."""
_TIMEOUT: Final = 120.0

T = TypeVar("T")


class SparkCluster:
    """`master`: its URL. `workers`: by their order; a dead one stays in the list."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self._run("master", "org.apache.spark.deploy.master.Master", "--port", "0", "--webui-port", "0")
        self.master = self._said("master", r"Starting Spark master at (spark://\S+)")
        self._page = "http://127.0.0.1:" + self._said("master", r"'MasterUI' on port (\d+)")

    def add_worker(self) -> None:
        name = f"worker{len(self.workers)}"
        self.workers.append(
            self._run(
                name, "org.apache.spark.deploy.worker.Worker", "--port", "0", "--webui-port", "0",
                "--cores", "1", "--memory", "600m", "--work-dir", str(self._directory / name), self.master,
            )
        )  # fmt: skip
        self._said(name, "(Successfully registered with master)")

    def start_connect_server(self, token: str) -> str:
        """A Spark Connect server as its own application here, as somebody who runs one would start it: its URL."""
        settings = {**SETTINGS, "spark.cores.max": "1", "spark.ui.port": "0", "spark.connect.grpc.binding.port": "0"}
        confs = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        self._start(
            "connect",
            [HOME / "bin" / "spark-submit", "--master", self.master, *confs, "--class", CONNECT_SERVER],
            {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token},
        )
        port = self._said("connect", r"Spark Connect server started at: \S*?:(\d+)\s")
        return f"sc://localhost:{port}/;token={token}"

    def connection(self, settings: Mapping[str, str] | None = None) -> str:
        """As Airflow's environment says it."""
        host, _, port = self.master.rpartition(":")
        conf = {**SETTINGS, **(settings or {})}
        return json.dumps({"conn_type": "spark", "host": host, "port": int(port), "extra": {"conf": conf}})

    def state(self) -> dict[str, Any]:
        """The master's own: workers, `activeapps`, `completedapps`."""
        with urllib.request.urlopen(f"{self._page}/json/", timeout=120) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
        return found

    def executors(self) -> dict[int, int]:
        """Pids of the executors' JVMs, each with the number of its worker."""
        found = {}
        for number, worker in enumerate(self.workers):
            for pid in children(worker.pid):
                if "CoarseGrainedExecutorBackend" in command_line(pid):
                    found[pid] = number
        return found

    def kill_worker(self, number: int) -> None:
        """With its executors, as a lost machine does."""
        doomed = [pid for pid, worker in self.executors().items() if worker == number]
        for pid in (self.workers[number].pid, *doomed):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.workers[number].wait()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _run(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        memory = {
            "SPARK_DAEMON_MEMORY": "200m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICKLY} -Dspark.master.rest.enabled=false",
        }
        return self._start(
            name, [HOME / "bin" / "spark-class", command[0], "--host", "127.0.0.1", *command[1:]], memory
        )

    def _start(self, name: str, command: Sequence[str | Path], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **variables,
            "SPARK_HOME": str(HOME),
            "SPARK_LAUNCHER_OPTS": QUICKLY,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self._directory,
                env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _said(self, name: str, pattern: str) -> str:
        found = eventually(lambda: re.search(pattern, self._log(name).read_text()), f"{name} says {pattern}")
        return str(found.group(1))


def eventually(look: Callable[[], T | None], what: str, timeout: float = _TIMEOUT) -> T:
    """The first answer that is not nothing."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(word)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()
        ]
    return []


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
