"""The initial copy on Spark: one job over the numbers of the parts, one task for each part.

A task imports the source's snapshot and pipes COPY into COPY (`pipeline/copy/open.py`): no row passes through the JVM,
which would only parse and print it again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.copy.open import load_part
from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder
from airflow_parallel_apply.pipeline.errors import OwnershipLost, ParallelApplyError, RetryableError, Unavailable
from airflow_parallel_apply.pipeline.packed_error import pack, unpack
from airflow_parallel_apply.spark.access import SparkAccess
from airflow_parallel_apply.spark.faults import spark_errors
from airflow_parallel_apply.spark.schemas import RESULT_SCHEMA
from airflow_parallel_apply.spark.server import connect_server
from airflow_parallel_apply.spark.session import ConnectAccess, release_session
from airflow_parallel_apply.spark.worker import die_with_parent

_WARM_WORKERS: Final = 4
_CANCEL_PATIENCE: Final = timedelta(seconds=3)
_CANCEL_AGAIN_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyParts:
    """The function of the job's `mapInArrow`. The secrets travel in its ends, pickled, and nowhere else.

    `parts`: by the row number that a task is given.
    """

    source: Endpoint
    target: Endpoint
    order: CopyOrder
    parts: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of JSON for each part that failed: what it met. Errors are data, so that Spark does not repeat them;
        whoever asked for the copy tries what is missing again.
        """
        die_with_parent()
        for batch in batches:
            texts = []
            for index in batch.column("id").to_pylist():
                try:
                    load_part(self.source, self.target, self.order, self.parts[index])
                except ParallelApplyError as error:
                    texts.append(json.dumps({"error": pack(error)}))
            yield pa.record_batch([pa.array(texts, pa.string())], names=["result"])


def warm(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Nothing, in a worker that has imported what `CopyParts` imports."""
    die_with_parent()
    for batch in batches:
        yield pa.record_batch([pa.array([True] * batch.num_rows)], names=["ready"])


@contextlib.contextmanager
def spark_copier(url: str | None, source: Endpoint, target: Endpoint) -> Iterator[SparkCopier]:
    """A copier in a session of its own, which ends with it. `url` None: the host's embedded server, which starts when
    it is asked to copy.
    """
    ids = [str(uuid4())]
    with contextlib.ExitStack() as servers:

        def current_url() -> str:
            return url if url is not None else servers.enter_context(connect_server()).url

        def session_id(closed: str | None) -> str:
            if closed is not None:
                ids.append(str(uuid4()))
            return ids[-1]

        copier = SparkCopier(access=ConnectAccess(url=current_url, session_id=session_id), source=source, target=target)
        try:
            yield copier
        finally:
            copier.close()
            if copier.has_begun:
                release_session(current_url(), ids[-1])


class SparkCopier:
    """Implements `Copier`. The session opens with the first job, and anew after `Unavailable`."""

    def __init__(self, *, access: SparkAccess, source: Endpoint, target: Endpoint) -> None:
        self._access = access
        self._source = source
        self._target = target
        self._session: Any = None
        self._running: str | None = None
        self._is_cancelled = False
        self._has_begun = False
        self._changed = threading.Condition()
        self._opening = threading.Lock()

    @property
    def has_begun(self) -> bool:
        """True once the server knows the copier's session."""
        return self._has_begun

    def begin(self) -> None:
        """Open the session and start its Python workers, which takes seconds."""
        threading.Thread(target=self.warm_up, name="warm up spark", daemon=True).start()

    def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
        tag = f"{order.pipeline}-copy-{uuid4().hex}"
        try:
            with self._job(tag) as session, spark_errors("copy"):
                work = CopyParts(source=self._source, target=self._target, order=order, parts=tuple(parts))
                found = session.range(0, len(parts), 1, len(parts)).mapInArrow(work, RESULT_SCHEMA).toArrow()
        except Unavailable:
            self._forget_session()
            raise
        errors = [unpack(json.loads(text)["error"]) for text in found.column("result").to_pylist()]
        if errors:
            # One that nothing helps against says more than that others did not begin after it.
            raise min(errors, key=lambda error: (isinstance(error, RetryableError), isinstance(error, OwnershipLost)))

    def cancel(self) -> None:
        """Returns when nothing is being copied any more, or after three seconds."""
        deadline = time.monotonic() + _CANCEL_PATIENCE.total_seconds()
        self._is_cancelled = True
        # A job that is about to begin does not hear the first call.
        while (tag := self._running) is not None and time.monotonic() < deadline:
            if self._session is not None:
                with contextlib.suppress(ParallelApplyError):
                    self._access.interrupt(self._session, tag)
            with self._changed:
                self._changed.wait_for(lambda: self._running is None, _CANCEL_AGAIN_SECONDS)

    def close(self) -> None:
        self.cancel()
        self._forget_session()

    @contextlib.contextmanager
    def _job(self, tag: str) -> Iterator[Any]:
        with self._changed:
            self._running = tag
        try:
            if self._is_cancelled:
                raise OwnershipLost("the copy was cancelled", op="copy")
            session = self._open()
            with self._access.tagged(session, tag):
                yield session
        except ParallelApplyError as error:
            if self._is_cancelled:
                raise OwnershipLost("the copy was cancelled", op="copy") from error
            raise
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()

    def _open(self) -> Any:
        with self._opening:
            if self._session is None:
                self._has_begun = True
                self._session = self._access.open()
            return self._session

    def warm_up(self) -> None:
        """Finish what `begin` starts. An error is left for the first copy to meet and report."""
        # A channel that was closed meanwhile is a ValueError.
        with contextlib.suppress(ParallelApplyError, ValueError), spark_errors("warm up Spark"):
            session = self._open()
            session.range(0, _WARM_WORKERS, 1, _WARM_WORKERS).mapInArrow(warm, "ready boolean").toArrow()

    def _forget_session(self) -> None:
        with self._opening:
            session, self._session = self._session, None
        if session is not None:
            self._access.close(session)
