"""The apply stage on Spark: a unit of the log waits staged at the target."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import uuid4

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import (
    LogError,
    OwnershipLost,
    ParallelApplyError,
    RetryableError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.log import LogReader, open_reader
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.pipeline.store.open import open_store
from airflow_parallel_apply.pipeline.store.protocol import Store, StoreBranch, StreamBranch
from airflow_parallel_apply.pipeline.target.open import target_connector
from airflow_parallel_apply.spark.access import SparkAccess, core_count
from airflow_parallel_apply.spark.faults import spark_errors
from airflow_parallel_apply.spark.job import EXCHANGE_ROWS, ApplyJob, build_job, counted_rows, is_narrow, parts_of
from airflow_parallel_apply.spark.schemas import RESULT_SCHEMA
from airflow_parallel_apply.spark.session import measure_batches
from airflow_parallel_apply.spark.worker import LoadRows, read_results

_CANCEL_PATIENCE: Final = timedelta(seconds=3)
_CANCEL_AGAIN_SECONDS: Final = 0.2


def open_stage(
    *, access: SparkAccess, config: PipelineConfig, target: Endpoint, exchange_rows: int = EXCHANGE_ROWS
) -> SparkStage:
    """Return the stage of a pipeline's lane, with the pipeline's log and store. Errors: `LogError`."""
    log = open_reader(config.log_url)
    return SparkStage(access=access, log=log, store=open_store(config, log), target=target, exchange_rows=exchange_rows)


class SparkStage:
    """Implements `Stage` for one lane, which reads its units where `store` says; `log` tells the tables. The session
    opens with the first unit, and anew after `Unavailable`.
    """

    def __init__(
        self,
        *,
        access: SparkAccess,
        log: LogReader,
        store: Store,
        target: Endpoint,
        exchange_rows: int = EXCHANGE_ROWS,
    ) -> None:
        self._access = access
        self._log = log
        self._store = store
        self._target = target
        self._connector = target_connector(target)
        self._takes_changes = self._connector.takes_changes(target)
        self._exchange_rows = exchange_rows
        self._session: Any = None
        self._is_measured = False
        self._running: dict[str, ParallelApplyError | None] = {}
        """Tags of the jobs under way, and why they are interrupted where they are."""
        self._changed = threading.Condition()

    def stage(self, unit: Unit) -> StagedUnit:
        started = time.monotonic()
        try:
            with self._job_tag(unit) as tag:
                session = self._open()
                with spark_errors("stage"):
                    parts = parts_of(unit, partial(core_count, session), exchange_rows=self._exchange_rows)
                branch = self._store.branch(unit, parts=parts)
                while True:
                    self._bound_batches(session, branch)
                    job = build_job(
                        session,
                        unit,
                        branch,
                        takes_changes=self._takes_changes,
                        exchange_rows=self._exchange_rows,
                    )
                    self._require_not_interrupted(tag)
                    try:
                        tables = self._run(session, tag, unit, job)
                        break
                    except (LogError, RetryableError) as error:
                        self._require_not_interrupted(tag, error)
                        if not (isinstance(error, LogError) or isinstance(branch, StreamBranch)):
                            raise
                        # A job, or Spark's retry of its task, may come later than the files of merged segments stay;
                        # what a store held may be gone, or less than the log has; and a router may be away.
                        self._store.doubt(unit)
                        listed, branch = branch, self._store.branch(unit, parts=parts)
                        if branch == listed:
                            raise
        except Unavailable:
            self._forget_session()
            raise
        except ParallelApplyError as error:
            error.at(pipeline=unit.pipeline, channel=unit.channel)
            raise
        return StagedUnit(unit=unit, tables=tables, row_count=unit.row_count, seconds=time.monotonic() - started)

    def cancel(self) -> None:
        self.interrupt(lambda: OwnershipLost("staging was cancelled", op="stage"))

    @property
    def is_busy(self) -> bool:
        """True while something is being staged."""
        return bool(self._running)

    def interrupt(self, reason: Callable[[], ParallelApplyError]) -> None:
        """End what is being staged with `reason`. Returns once it has ended, or after three seconds."""
        deadline = time.monotonic() + _CANCEL_PATIENCE.total_seconds()
        with self._changed:
            doomed = tuple(self._running)
            self._running.update({tag: self._running[tag] or reason() for tag in doomed})
        # A job that is about to begin does not hear the first call.
        while (left := [tag for tag in doomed if tag in self._running]) and time.monotonic() < deadline:
            session = self._session
            for tag in left:
                with contextlib.suppress(ParallelApplyError):
                    if session is not None:
                        self._access.interrupt(session, tag)
            with self._changed:
                self._changed.wait_for(lambda: not self._running.keys() & set(doomed), _CANCEL_AGAIN_SECONDS)

    def close(self) -> None:
        self.cancel()
        self._forget_session()
        self._store.close()

    def _bound_batches(self, session: Any, branch: StoreBranch) -> None:
        """Have batches measured from now on, unless the number of rows bounds them well enough."""
        if not self._is_measured and not is_narrow(branch):
            measure_batches(session)
            self._is_measured = True

    def _open(self) -> Any:
        with self._changed:
            if self._session is None:
                self._session = self._access.open()
            return self._session

    def _forget_session(self) -> None:
        with self._changed:
            session, self._session, self._is_measured = self._session, None, False
        if session is not None:
            self._access.close(session)

    @contextlib.contextmanager
    def _job_tag(self, unit: Unit) -> Iterator[str]:
        tag = f"{unit.pipeline}-{'all' if unit.channel is None else unit.channel}-{uuid4().hex}"
        with self._changed:
            self._running[tag] = None
        try:
            yield tag
        except ParallelApplyError as error:
            self._require_not_interrupted(tag, error)
            raise
        finally:
            with self._changed:
                del self._running[tag]
                self._changed.notify_all()

    def _require_not_interrupted(self, tag: str, error: Exception | None = None) -> None:
        reason = self._running[tag]
        if reason is not None:
            raise reason from error

    def _run(self, session: Any, tag: str, unit: Unit, job: ApplyJob) -> tuple[Any, ...]:
        times = CommitTimes.of_log(self._log, unit.after_seqno, unit.last_seqno) if self._takes_changes else None
        loader = self._connector.loader(self._target, unit, self._log.state().relations, commit_times=times)
        load = LoadRows(loader=loader, nonce=tag)
        with self._access.tagged(session, tag), spark_errors("stage"):
            loading = job.ordered.mapInArrow(load, RESULT_SCHEMA)
            tables = read_results(loading.toArrow())
            counted = None if job.exchanged else counted_rows(loading, job.scans)
            if counted != unit.row_count:
                # Only now and then: Spark's metric is not told, or counts what it computed twice.
                counted = job.counted.count()
        if counted != unit.row_count:
            raise LogError(
                f"Spark found {counted} rows where the plan has {unit.row_count}",
                op="stage",
                seqno=unit.last_seqno,
                hint="The log changed under the plan, or is not the same directory on every worker.",
            )
        return tables
