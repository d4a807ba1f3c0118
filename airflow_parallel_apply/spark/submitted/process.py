"""The task's side: `spark-submit`, and the conversation with the driver that it starts."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.spark.cluster import Cluster
from airflow_parallel_apply.spark.java import find_java
from airflow_parallel_apply.spark.submitted.messages import Logged, Signal, ToDriver, ToTask

_logger = logging.getLogger(__name__)

_DRIVER: Final = Path(__file__).with_name("driver.py")
_PACKAGE_ROOT: Final = Path(__file__).parents[3]
_START_SECONDS: Final = 180.0
"""A cold machine needs half a minute for a JVM, and some masters for the application's files."""
_CANCEL_SECONDS: Final = 2.5
_LEAVE_SECONDS: Final = 10.0
"""Spark tells its master, which takes a moment; nothing depends on it."""
_TERMINATE_SECONDS: Final = 1.0
_TAIL_LETTERS: Final = 600
_TICK_SECONDS: Final = 0.1

# Connections and other secrets of the deployment; and what would make Spark's own choice between Connect and a driver.
_KEPT_BACK: Final = ("AIRFLOW", "_AIRFLOW", "__AIRFLOW", "PGPASSWORD", "PARALLEL_APPLY_")
_CONNECT_MODE: Final = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE", "SPARK_API_MODE", "MASTER")


class DriverProcess:
    """One submitted application. `send` and `receive` from one thread, `cancel` from any; `close` ends all of it."""

    def __init__(self, cluster: Cluster, *, name: str, cores: int) -> None:
        """Errors: `ConfigurationError` where Java or Spark's scripts are missing."""
        find_java()
        submit = _spark_home() / "bin" / "spark-submit"
        if not submit.is_file():
            raise ConfigurationError(
                f"there is no {submit}", op="spark", hint="Unset SPARK_HOME, or let it name a Spark distribution."
            )
        self._cluster = cluster
        self._sending = threading.Lock()
        self._connection: Connection | None = None
        self._cancelled = False
        # Short, since the path of a socket may have a hundred letters.
        self._directory = Path(tempfile.mkdtemp(prefix="pa-"))
        try:
            # Connections are taken from this directory's owner only: nobody else can enter it.
            self._listener = Listener(str(self._directory / "task"), family="AF_UNIX")
            properties = {**cluster.properties(cores=cores), "spark.pyspark.driver.python": sys.executable}
            self._process = self._submit(submit, name, properties)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def start(self, work: ToDriver) -> None:
        """Wait for the driver, and tell it what it is. Errors: `Unavailable`."""
        self._connection = self._accept()
        # One driver comes, and Spark has read its settings.
        self._listener.close()
        self._settings.unlink()
        self.send(work)

    def send(self, message: ToDriver) -> None:
        """Errors: `Unavailable` when the driver is gone."""
        connection = self._connection
        if connection is None:
            raise self._ended()
        try:
            with self._sending:
                connection.send(message)
        except (OSError, ValueError) as error:
            raise self._ended() from error

    def receive(self, timeout_seconds: float) -> ToTask | None:
        """The next message; None when there is none within the time. Lines for the log go there.

        Errors: `Unavailable` when the driver is gone, with the last words of Spark.
        """
        connection = self._connection
        if connection is None:
            raise self._ended()
        try:
            if not connection.poll(timeout_seconds):
                return None
            message: ToTask = connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if isinstance(message, Logged):
            _logger.log(message.level, "driver: %s", message.text)
            return None
        return message

    def cancel(self) -> None:
        """Let the driver give back what it holds, and end it whatever it does. Takes four seconds at most."""
        self._cancelled = True
        with contextlib.suppress(Unavailable):
            self.send(Signal.CANCEL)
        self._end(_CANCEL_SECONDS)

    def close(self) -> None:
        """End what is left; the driver leaves when its connection does."""
        if self._connection is not None:
            self._connection.close()
        self._end(_LEAVE_SECONDS)
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _submit(self, submit: Path, name: str, properties: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with os.fdopen(os.open(self._settings, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(f"{key}={_escaped(value)}\n" for key, value in properties.items())
        command = [
            str(submit), "--name", name, "--properties-file", str(self._settings), "--load-spark-defaults",
            str(_DRIVER), str(self._directory / "task"),
        ]  # fmt: skip
        with self._output.open("wb") as output:
            # The scripts replace themselves by Java, so the child's pid is the JVM's.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(),
                start_new_session=True,
            )

    @property
    def _settings(self) -> Path:
        return self._directory / "settings"

    @property
    def _output(self) -> Path:
        return self._directory / "output"

    def _accept(self) -> Connection:
        """A listener waits for ever, and a JVM may end before its driver comes."""
        deadline = time.monotonic() + _START_SECONDS
        accepted: list[Connection] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                accepted.append(self._listener.accept())

        waiting = threading.Thread(target=accept, name="accept a driver", daemon=True)
        waiting.start()
        while not accepted:
            waiting.join(_TICK_SECONDS)
            if self._process.poll() is not None or self._cancelled:
                raise self._ended()
            if time.monotonic() > deadline:
                raise Unavailable(f"Spark's driver did not start: {self._tail()}", op="submit")
        return accepted[0]

    def _end(self, leave_seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(leave_seconds)
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TERMINATE_SECONDS)
        # The driver is in the JVM's session.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TERMINATE_SECONDS)

    def _ended(self) -> Unavailable:
        if self._cancelled:
            return Unavailable("Spark's driver was told to end", op="submit")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_TERMINATE_SECONDS)
        return Unavailable(
            f"the application on {self._cluster.master} ended (exit code {self._process.poll()}): {self._tail()}",
            op="submit",
        )

    def _tail(self) -> str:
        """Spark's last messages without Java's frames, in one line."""
        try:
            text = self._output.read_text(errors="replace")
        except OSError:
            return "no message"
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("\t", "WARNING:"))]
        return " | ".join(lines)[-_TAIL_LETTERS:] or "no message"


def _spark_home() -> Path:
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    import pyspark

    return Path(pyspark.__file__).parent


def _environment() -> dict[str, str]:
    """The driver's environment. The executors' Python is at the same path as this one, unless PYSPARK_PYTHON or the
    setting `spark.pyspark.python` says otherwise.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_KEPT_BACK) and name not in _CONNECT_MODE
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")])),
        # A script's directory comes first in Python's path otherwise, and its names hide others.
        "PYTHONSAFEPATH": "1",
        "SPARK_HOME": str(_spark_home()),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
    }


def _escaped(value: str) -> str:
    """As java.util.Properties reads it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
