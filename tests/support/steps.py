"""Processes that each run one step, to be killed and stopped by tests: forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.step_process import Order, run_step

_LONGEST_SECONDS = 240
"""More than a lane gives to what does not come back: two minutes of trying again, and one last try that waits for a new
Spark server on a busy machine. What lasts longer hangs.
"""


class StepProcess:
    """One step in a process of its own, begun at once. Its messages go to `log`."""

    def __init__(self, context: ForkServerContext, order: Order, log: Path) -> None:
        self.log = log
        self._reports, reports = context.Pipe(duplex=False)
        # The server that forks has the environment of its own start.
        self._process = context.Process(target=run_step, args=(order, dict(os.environ), log, reports))
        self._process.start()
        reports.close()
        self.name = f"{order.step} {order.lane} pid {self._process.pid}"

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        """Nothing, where it has ended already."""
        if self.running:
            assert self._process.pid is not None
            os.kill(self._process.pid, number)

    def wait_stopped(self, timeout: float = 180) -> None:
        """Until a SIGSTOP (its own, by a fault) has taken hold."""
        deadline = time.monotonic() + timeout
        status = Path(f"/proc/{self._process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            assert self.running, f"{self.name} ended: {self.tail()}"
            assert time.monotonic() < deadline, f"{self.name} does not stop: {self.tail()}"
            time.sleep(0.02)

    def wait(self, timeout: float = _LONGEST_SECONDS) -> int:
        """Its exit status; negative: the signal that ended it."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise AssertionError(f"{self.name} does not end: {self.tail()}")
        return self._process.exitcode

    def report(self, timeout: float = _LONGEST_SECONDS) -> dict[str, Any] | None:
        """Its report at its end; None where it failed or was killed."""
        if self.wait(timeout) != 0:
            return None
        found: dict[str, Any] = self._reports.recv()
        return found

    def tail(self, lines: int = 25) -> str:
        return "\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        for number in (signal.SIGKILL, signal.SIGCONT):
            self.signal(number)
        self._process.join()
        self._process.close()
        self._reports.close()


class Steps:
    """Starts processes and ends them all."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.support.step_process"])
        self._all: list[StepProcess] = []

    def start(self, order: Order) -> StepProcess:
        self._all.append(StepProcess(self._context, order, self._directory / f"step{len(self._all)}.log"))
        return self._all[-1]

    def started(self) -> list[StepProcess]:
        """The last ones, newest first."""
        return self._all[:-4:-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all:
            process.close()
