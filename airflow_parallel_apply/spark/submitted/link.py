"""The driver's side of the conversation: what the task asks meanwhile, and the end of the process with its task's."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.spark.submitted.messages import CopyCall, Failed, Logged, Signal, ToDriver, ToTask

_LEAVE_SECONDS: Final = 4.0
"""A driver whose task is gone gives back what it holds within this, or leaves without."""


class TaskLink:
    """Reads on a thread of its own. `stop_requested`, `cancelled`: what was heard so far."""

    def __init__(self, connection: Connection, directory: Path) -> None:
        """`directory`: the task's, which nobody else removes when it was killed."""
        self._connection = connection
        self._directory = directory
        self._sending = threading.Lock()
        self._stop = threading.Event()
        self._cancel = threading.Event()
        self._calls: queue.SimpleQueue[CopyCall | None] = queue.SimpleQueue()
        self._on_cancel: Callable[[], None] = lambda: None

    def first(self) -> ToDriver:
        """Receive the task's first message, which says what this driver is for, and then begin to listen."""
        work: ToDriver = self._connection.recv()
        threading.Thread(target=self._listen, name="listen to the task", daemon=True).start()
        return work

    @property
    def stop_requested(self) -> bool:
        return self._stop.is_set()

    @property
    def cancelled(self) -> bool:
        return self._cancel.is_set()

    def on_cancel(self, interrupt: Callable[[], None]) -> None:
        """Call this when the task asks to end, or is gone."""
        self._on_cancel = interrupt
        if self.cancelled:
            interrupt()

    def next_call(self) -> CopyCall | None:
        """Waits for it; None when there is none any more."""
        return self._calls.get()

    def send(self, message: ToTask) -> None:
        """A task that is gone needs no answer."""
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            self._cancelled()

    def send_error(self, error: Exception) -> None:
        """As it is, where it can be sent."""
        try:
            self.send(Failed(error=error))
        except (TypeError, AttributeError, ValueError) as unsendable:
            self.send(Failed(error=ParallelApplyError(f"{type(error).__name__}: {error} ({unsendable})")))

    def _listen(self) -> None:
        while True:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                shutil.rmtree(self._directory, ignore_errors=True)
                self._leave_soon()
                self._cancelled()
                return
            match message:
                case Signal.STOP:
                    self._stop.set()
                case Signal.CANCEL:
                    self._cancelled()
                case CopyCall():
                    self._calls.put(message)

    def _cancelled(self) -> None:
        if not self._cancel.is_set():
            self._cancel.set()
            self._calls.put(None)
            # It waits until what runs has ended, and the task may say more meanwhile.
            threading.Thread(target=self._on_cancel, name="cancel", daemon=True).start()

    @staticmethod
    def _leave_soon() -> None:
        timer = threading.Timer(_LEAVE_SECONDS, os._exit, [1])
        timer.daemon = True
        timer.start()


class LinkHandler(logging.Handler):
    """This package's log records, as lines of the task's log."""

    def __init__(self, link: TaskLink) -> None:
        super().__init__(logging.INFO)
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        self._link.send(Logged(level=record.levelno, text=self.format(record)))
