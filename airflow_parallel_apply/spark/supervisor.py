"""Keeps one Spark Connect server: `python -m airflow_parallel_apply.spark.supervisor DIRECTORY LOCK IDLE_SECONDS`.

Started by `pipeline.embedded.lease` only, with the lock on the supervisor file as an open descriptor. States::

    starting ──(the log names the ports)──▶ serving ──(no lease for the idle time | SIGTERM)──▶ stopping ──▶ gone
        └──────────────(the JVM ended)──────────┴───────────────────────────────────────────────────▶ gone
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from airflow_parallel_apply.pipeline.embedded.lease import is_idle
from airflow_parallel_apply.spark.layout import Layout, ServerState

_PR_SET_PDEATHSIG: Final = 1
_PORT: Final = re.compile(r"Spark Connect server started at: \S*?:(\d+)\s")
_UI_PORT: Final = re.compile(r"Successfully started service 'SparkUI' on port (\d+)")
_TICK_SECONDS: Final = 0.25
_STOP_SECONDS: Final = 10.0
_OUTPUT_BYTES: Final = 8 * 2**20
_PACKAGE_ROOT: Final = Path(__file__).parents[2]
# The starter's environment may hold the secrets of one pipeline; the server outlives it and serves others. The
# machine's own rights are the same for all: workers write to the buckets that `check` has looked at.
_PASSED_ON: Final = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_",
    "TZ",
    "TMPDIR",
    "JAVA_HOME",
    "LD_LIBRARY_PATH",
    "PG",
    "AWS_",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "KRB5",
    "SSL_CERT_",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the starter's environment that the server has, and its workers."""
    return {name: value for name, value in environment.items() if name.startswith(_PASSED_ON)}


class Supervisor:
    """One server, from start to end. `serve` returns when the server is gone."""

    def __init__(self, layout: Layout, idle_seconds: float) -> None:
        self._layout = layout
        self._idle_seconds = idle_seconds
        self._token = secrets.token_urlsafe(24)
        self._asked_to_stop = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def serve(self) -> None:
        with self._layout.lease.open("ab") as lease:
            server = self._start()
            try:
                published = False
                while not self._asked_to_stop and not _ended(server):
                    published = published or self._publish(server.pid)
                    self._bound_output()
                    if published and is_idle(lease.fileno(), self._idle_seconds):
                        break
            finally:
                self._stop(server)

    def _start(self) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        shutil.rmtree(self._layout.work / "local", ignore_errors=True)
        environment = {
            **passed_on(os.environ),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")])),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self._layout.configuration),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        # The scripts replace themselves by Java, so the child's pid is the JVM's, and the kernel's promise is kept.
        return subprocess.Popen(
            [
                str(home / "bin" / "spark-submit"),
                "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
                "--name", "parallel-apply",
            ],
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=self._layout.work,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # runs prctl only
        )  # fmt: skip

    def _publish(self, server_pid: int) -> bool:
        """Tell the clients once the server listens. Spark chooses the ports itself and says so in its log."""
        try:
            text = self._layout.log.read_text(errors="replace")
        except FileNotFoundError:
            return False
        port, ui_port = _PORT.search(text), _UI_PORT.search(text)
        if port is None:
            return False
        self._layout.write_state(
            ServerState(
                supervisor_pid=os.getpid(),
                server_pid=server_pid,
                port=int(port.group(1)),
                ui_url=f"http://127.0.0.1:{ui_port.group(1)}" if ui_port else "",
                token=self._token,
            )
        )
        return True

    def _stop(self, server: subprocess.Popen[bytes]) -> None:
        self._layout.state.unlink(missing_ok=True)
        if server.poll() is None:
            server.terminate()
            try:
                server.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(self._layout.work, ignore_errors=True)

    def _bound_output(self) -> None:
        if self._layout.output.stat().st_size > _OUTPUT_BYTES:
            os.truncate(self._layout.output, 0)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._asked_to_stop = True


def main(arguments: list[str]) -> None:
    """Detach, so that the starter is not a parent who has to wait, and serve."""
    directory, lock, idle_seconds = Path(arguments[0]), int(arguments[1]), float(arguments[2])
    if os.fork() > 0:
        os._exit(0)
    os.set_inheritable(lock, False)
    Supervisor(Layout(directory=directory), idle_seconds).serve()


def _ended(server: subprocess.Popen[bytes]) -> bool:
    try:
        server.wait(timeout=_TICK_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
