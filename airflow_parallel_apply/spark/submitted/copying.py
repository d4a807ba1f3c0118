"""The initial copy on a cluster: the leader stays in the task, the jobs run in the driver of an application."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder
from airflow_parallel_apply.pipeline.errors import OwnershipLost, ParallelApplyError, Unavailable
from airflow_parallel_apply.spark.classic import ClassicAccess
from airflow_parallel_apply.spark.cluster import Cluster
from airflow_parallel_apply.spark.copier import SparkCopier
from airflow_parallel_apply.spark.submitted.executors import await_executor
from airflow_parallel_apply.spark.submitted.link import TaskLink
from airflow_parallel_apply.spark.submitted.messages import CopyCall, CopyWork, Done, Failed
from airflow_parallel_apply.spark.submitted.process import DriverProcess

_WAIT_SECONDS: Final = 1.0


def serve_copies(work: CopyWork, link: TaskLink, access: ClassicAccess) -> None:
    """In the driver: do what is called for, one call after the other, until the task is gone."""
    copier = SparkCopier(access=access, source=work.source, target=work.target)
    link.on_cancel(copier.cancel)
    await_executor(access, link, work.log_url, work.target, enough=lambda: False)
    while (call := link.next_call()) is not None:
        try:
            copier.copy(call.order, call.parts)
        except ParallelApplyError as error:
            link.send_error(error)
        else:
            link.send(Done())


class SubmittedCopier:
    """Implements `Copier` in the task. An application that ended is followed by another one with the next call."""

    def __init__(self, start: Callable[[], DriverProcess], work: CopyWork) -> None:
        """`start`: submits an application."""
        self._start = start
        self._work = work
        self._process: DriverProcess | None = None
        self._is_cancelled = False
        self._starting = threading.Lock()

    def begin(self) -> None:
        """Submit, which takes ten seconds and more."""
        threading.Thread(target=self._begin, name="submit", daemon=True).start()

    def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
        try:
            process = self._started()
            process.send(CopyCall(order=order, parts=tuple(parts)))
            while True:
                match process.receive(_WAIT_SECONDS):
                    case Done():
                        return
                    case Failed(error=error):
                        raise error
        except Unavailable:
            self._drop()
            if self._is_cancelled:
                raise OwnershipLost("the copy was cancelled", op="copy") from None
            raise

    def cancel(self) -> None:
        """Returns when nothing is being copied any more, or after four seconds."""
        self._is_cancelled = True
        if self._process is not None:
            self._process.cancel()

    def close(self) -> None:
        self._is_cancelled = True
        self._drop()

    def _begin(self) -> None:
        """Trouble shows again, and is told, when there is something to copy."""
        with contextlib.suppress(ParallelApplyError):
            self._started()

    def _started(self) -> DriverProcess:
        with self._starting:
            if self._is_cancelled:
                raise OwnershipLost("the copy was cancelled", op="copy")
            if self._process is None:
                process = self._process = self._start()
                try:
                    process.start(self._work)
                except BaseException:
                    process.close()
                    self._process = None
                    raise
            return self._process

    def _drop(self) -> None:
        with self._starting:
            process, self._process = self._process, None
        if process is not None:
            process.close()


@contextlib.contextmanager
def submitted_copier(cluster: Cluster, work: CopyWork, *, name: str, cores: int) -> Iterator[SubmittedCopier]:
    """A copier whose application ends with it; it is submitted when it is asked to copy."""
    copier = SubmittedCopier(lambda: DriverProcess(cluster, name=name, cores=cores), work)
    try:
        yield copier
    finally:
        copier.close()
