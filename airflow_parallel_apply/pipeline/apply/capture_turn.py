"""Capture while applying: the rest of the source's backlog is one task that the lanes' capture threads take turns with.

One turn is one read of the source; each of its steps makes about `STEP_CHANGES` changes durable, plans and feeds them.
Then the task is given back. The source and the log's writer admit one at a time anyway; the claim only keeps the others
from trying. A crash leaves the task to come free at its lease's end, and what is in the log stays there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from datetime import timedelta
from typing import Final

from airflow_parallel_apply.pipeline.apply.lease_renewer import LeaseRenewer
from airflow_parallel_apply.pipeline.apply.report import LaneReport
from airflow_parallel_apply.pipeline.apply.retry import retrying
from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.capture.values import CaptureStep
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.state import Phase, UnitFailure
from airflow_parallel_apply.pipeline.errors import FatalError, OwnershipLost, ParallelApplyError, RetryableError
from airflow_parallel_apply.pipeline.ledger.protocol import RunBounds
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.plan.bounds import last_seqno_of_run
from airflow_parallel_apply.pipeline.plan.extend import extend_plan
from airflow_parallel_apply.pipeline.store.feed import feed_store
from airflow_parallel_apply.queue.model import Change, DependencyError, Task

_logger = logging.getLogger(__name__)

READ_CHANGES: Final = 2_000_000
STEP_CHANGES: Final = 200_000
CAPTURE_ROLE: Final = "capture"
_WAIT: Final = timedelta(seconds=1)


class CaptureTurns:
    """A lane's capture thread. Owns its own capture, session and coordinator (one instance, one thread). `told`: around
    what the source may refuse, to complete its hint. `require_pipeline`: as a lane's.
    """

    def __init__(
        self,
        *,
        config: PipelineConfig,
        bounds: RunBounds,
        claimant: str,
        capture: Callable[[], Capture],
        told: Callable[[], AbstractContextManager[None]],
        session: PipelineSession,
        require_pipeline: Callable[[], object],
        log: LogReader,
        coordinator: Coordinator,
        renewer: LeaseRenewer,
        report: LaneReport,
    ) -> None:
        self._config = config
        self._bounds = bounds
        self._claimant = claimant
        self._open_capture = capture
        self._told = told
        self._capture: Capture | None = None
        self._session = session
        self._require_pipeline = require_pipeline
        self._log = log
        self._coordinator = coordinator
        self._renewer = renewer
        self._report = report
        self._ended = threading.Event()
        self._failure: ParallelApplyError | None = None
        self._is_first_step = True
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to take turns, unless it does."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=CAPTURE_ROLE, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End after the step that is under way; it is cut short at its next batch."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def failure(self) -> ParallelApplyError | None:
        """The error that ended the thread, unless the coordinator knows it already."""
        return self._failure

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                retrying(self._require_pipeline, on_retry=self._tell)
                state = retrying(self._coordinator.state, on_retry=self._tell)
                if state.phase is not Phase.RUNNING or (state.until_seqno is not None and self._is_done()):
                    return
                self._turn()
        except RetryableError as error:
            # It was retried here for as long as is worth it: the lane's own retries shall not begin anew.
            self._failure = ParallelApplyError(str(error))
        except ParallelApplyError as error:
            self._failure = error
        except Exception as error:
            # Whatever it was, the lane must not wait for captures that nobody makes.
            _logger.exception("capture ended")
            self._failure = ParallelApplyError(f"capture failed: {error}", op=CAPTURE_ROLE)
        finally:
            self._renewer.hold(CAPTURE_ROLE, None)
            if self._capture is not None:
                self._capture.close()
                self._capture = None

    def _is_done(self) -> bool:
        """True if the task is gone: it goes when its last step is planned, before which that step's lane may die."""
        queue, names = self._coordinator.queue, self._coordinator.names
        return not retrying(lambda: queue.tasks(names.capture, limit=1), on_retry=self._tell)

    def _turn(self) -> None:
        queue, names = self._coordinator.queue, self._coordinator.names

        def claim() -> Task | None:
            return queue.claim([names.capture], claimant=self._claimant, lease=self._config.lease, timeout=_WAIT)

        task = retrying(claim, on_retry=self._tell)
        if task is None:
            return
        self._renewer.hold(CAPTURE_ROLE, task)
        try:
            with self._told():
                retrying(self._read, on_retry=self._tell)
        except FatalError as error:
            self._give_up(error)
        except (DependencyError, OwnershipLost) as error:
            _logger.warning("lost the capture turn: %s", error)
        finally:
            self._renewer.hold(CAPTURE_ROLE, None)

    def _read(self) -> None:
        if self._capture is None:
            self._capture = self._open_capture()
        is_done, self._is_first_step = False, True
        steps = self._capture.capture(
            self._bounds.until_offset,
            max_changes=READ_CHANGES,
            step_changes=STEP_CHANGES,
            cancelled=self._ended.is_set,
        )
        with closing(steps):
            for step in steps:
                is_done = self._make_known(step) or step.done
                self._coordinator.feed()
                if is_done:
                    # The end of an interval may show long before everything that was committed since is captured.
                    break
        self._renewer.exchange(CAPTURE_ROLE, self._delete if is_done else self._give_back)
        self._coordinator.feed()

    def _make_known(self, step: CaptureStep) -> bool:
        """Plan what is new, and settle where the run ends if the log tells now; whether it does."""
        self._report.captured_rows += step.row_count
        self._report.seconds[CAPTURE_ROLE] = self._report.seconds.get(CAPTURE_ROLE, 0.0) + step.seconds
        captured = self._log.state().last_seqno
        self._require_pipeline()
        # Not the step's last seqno: another run's capture may have brought more than this run is to apply.
        until = last_seqno_of_run(self._log, self._bounds.until_offset, self._bounds.until_time)
        if until is not None:
            # The bound first: the planner then ends an epoch there, and no lane feeds what lies behind it.
            until = self._session.ledger.settle_run(self._bounds.run_id, until).until_seqno
        if until is not None:
            self._coordinator.settle(until)
        extend_plan(
            self._log,
            self._session,
            self._config,
            generation=self._coordinator.names.generation,
            last_seqno=captured if until is None else None,
        )
        # Before the lanes get their tasks. What the target has on disk is asked for once a turn, since it waits for it.
        fed = feed_store(self._config, self._log, self._session, trims=self._is_first_step)
        self._is_first_step = False
        self._report.seconds["feed"] = self._report.seconds.get("feed", 0.0) + fed.seconds
        return until is not None

    def _delete(self, task: Task) -> None:
        self._coordinator.queue.modify(claimant=self._claimant, delete=[task.ref])

    def _give_back(self, task: Task) -> None:
        self._coordinator.queue.modify(claimant=self._claimant, change=[Change(ref=task.ref, value=task.value)])

    def _give_up(self, error: FatalError) -> None:
        """The source needs a person: what is fed is applied, then the generation ends failed."""
        _logger.error("%s", error)
        state = self._coordinator.state()
        failure = UnitFailure(
            seqno=state.fed_seqno + 1, channel=None, message=str(error.at(pipeline=self._config.pipeline))
        )

        def fail(task: Task) -> None:
            self._coordinator.fail(task, failure)

        self._renewer.exchange(CAPTURE_ROLE, fail)

    def _tell(self, error: BaseException) -> None:
        self._report.retries += 1
        _logger.warning("capture: trying again: %s", error)
        if self._ended.is_set():
            raise error
