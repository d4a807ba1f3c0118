"""Processes that each run one step: started ahead, since their imports take seconds; killed and stopped by tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.step_process import Order

ROOT = Path(__file__).parents[2]

_LONGEST_SECONDS = 240
"""More than a lane gives to what does not come back: two minutes of trying again, and one last try that waits for a new
Spark server on a busy machine. What lasts longer hangs.
"""


class StepProcess:
    """One `tests.support.step_process`. Its messages go to `log`."""

    def __init__(self, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as messages:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.step_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.name = ""

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def start(self, order: Order) -> Self:
        self.name = f"{order.step} {order.lane} pid {self._process.pid}"
        assert self._process.stdin is not None
        self._process.stdin.write(order.to_line())
        self._process.stdin.close()
        return self

    def signal(self, number: int) -> None:
        """Nothing, where it has ended already."""
        if self.running:
            os.kill(self._process.pid, number)

    def wait_stopped(self, timeout: float = 60) -> None:
        """Until a SIGSTOP (its own, by a fault) has taken hold."""
        deadline = time.monotonic() + timeout
        status = Path(f"/proc/{self._process.pid}/stat")
        while status.read_text().rpartition(")")[2].split()[0] != "T":
            assert self.running, f"{self.name} ended: {self.tail()}"
            assert time.monotonic() < deadline, f"{self.name} does not stop: {self.tail()}"
            time.sleep(0.02)

    def wait(self, timeout: float = _LONGEST_SECONDS) -> int:
        """Its exit status; negative: the signal that ended it."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end: {self.tail()}") from None

    def report(self, timeout: float = _LONGEST_SECONDS) -> dict[str, Any] | None:
        """What it says at its end; None where it failed or was killed."""
        if self.wait(timeout) != 0:
            return None
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.read())
        return found

    def tail(self, lines: int = 25) -> str:
        return "\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        for number in (signal.SIGKILL, signal.SIGCONT):
            self.signal(number)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Steps:
    """Gives processes out and keeps `spare` ones warm; ends them all."""

    def __init__(self, directory: Path, *, spare: int = 2, environment: dict[str, str] | None = None) -> None:
        self._directory = directory
        self._environment = environment or {}
        self._all: list[StepProcess] = []
        self._waiting: deque[StepProcess] = deque()
        self._spare = spare
        self.refill()

    def refill(self) -> None:
        """Start what is missing; the caller says when, so that it does not disturb what is measured."""
        while len(self._waiting) < self._spare:
            log = self._directory / f"step{len(self._all)}.log"
            self._waiting.append(StepProcess(log, self._environment))
            self._all.append(self._waiting[-1])

    def start(self, order: Order) -> StepProcess:
        if not self._waiting:
            self.refill()
        return self._waiting.popleft().start(order)

    def started(self) -> list[StepProcess]:
        """The last ones that got an order, newest first."""
        return [process for process in reversed(self._all) if process.name][:3]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all:
            process.close()
