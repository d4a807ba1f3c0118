"""CoordinatorOperator: opens a run, closes it, or asks it to stop.

`open` seeds three XComs before any lane starts, since a lane that reads a missing key logs an error:

| key | holds |
|---|---|
| `coordinator_state` | the coordinator's state as `open` left it; the truth is in the target (law 8) |
| `stop_marker` | `{"stop": false}`; whoever writes `{"stop": true}` there stops all channels at one seqno |
| `opened` | what lanes and `close` need to find the run's generation |

`close` is the only judge: the run is green only if it saw a clean shutdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Context, TaskInstanceState, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from airflow_parallel_apply.operators.capture import RUN_KEY, CaptureOperator
from airflow_parallel_apply.operators.earlier import wait_or_refuse
from airflow_parallel_apply.operators.lease import LeaseTask
from airflow_parallel_apply.operators.once import is_same_pipeline, require_alone
from airflow_parallel_apply.operators.skips import Skip, skip_of
from airflow_parallel_apply.operators.spark import release, session_for_lanes
from airflow_parallel_apply.owner import goes_on
from airflow_parallel_apply.pipeline.errors import FatalError, GapAhead, ParallelApplyError
from airflow_parallel_apply.task import ERROR_KEY, Settings, interval_of, run_identity

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.run import OpenedRun

STATE_KEY: Final = "coordinator_state"
STOP_KEY: Final = "stop_marker"
OPENED_KEY: Final = "opened"

_NO_MESSAGE: Final = (
    "it left no message: it was marked as failed, ran out of time, or its process was killed. Hint: See its log, then "
    "clear {task_id} with everything downstream."
)

_ENDED: Final = (
    "the run was ended before {task_id} began, and nothing was applied: it was marked as failed or ran out of time, or "
    "a task was marked as skipped"
)


class Action(StrEnum):
    """The step of a run that a `CoordinatorOperator` does."""

    OPEN = "open"
    """Take the lease, recover, plan, fill the queue; returns one item for each lane, for `.expand_kwargs`."""
    CLOSE = "close"
    """Compare what the lanes acknowledged with the target's positions; green only after a clean shutdown."""
    STOP = "stop"
    """Ask a running pipeline to stop all its channels cleanly at one seqno."""


class CoordinatorOperator(LeaseTask):
    """Opens a run, closes it, or asks a running pipeline to stop, as `action` says.

    :param action: ``open``, ``close`` or ``stop``
    :param open_task_id: for ``close``: id of the task that opened the run
    :param apply_task_id: for ``close``: id of the mapped lanes
    :param until: for ``open``: offset at which the run ends, as given to the capture task
    """

    template_fields: Sequence[str] = (*LeaseTask.template_fields, "open_task_id", "apply_task_id", "until")

    def __init__(
        self,
        *,
        action: Action | str,
        open_task_id: str = Action.OPEN,
        apply_task_id: str = "apply",
        until: str = "",
        trigger_rule: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.action = Action(action)
        judge = self.action is Action.CLOSE
        if self.action is Action.OPEN:
            # The lanes are mapped over what it returns, whatever `default_args` say.
            kwargs |= {"do_xcom_push": True, "multiple_outputs": False}
        super().__init__(
            trigger_rule=trigger_rule or (TriggerRule.ALL_DONE if judge else TriggerRule.ALL_SUCCESS), **kwargs
        )
        self.open_task_id = str(open_task_id)
        self.apply_task_id = apply_task_id
        self.until = until

    def work(self, context: Context) -> Any:
        match self.action:
            case Action.OPEN:
                return self._open(context, self.settings())
            case Action.CLOSE:
                self._judge_upstream(context)
                return self._close(context, self.settings())
            case Action.STOP:
                return self._stop(self.settings())

    def _open(self, context: Context, settings: Settings) -> list[dict[str, int]]:
        from airflow_parallel_apply.pipeline.run import open_run

        ti = context["ti"]
        identity = run_identity(context)
        require_alone(self, context)
        # Where nobody captured for the run, its end is frozen here.
        run_id = self._captured_as(context) or identity.run_id

        def open_it(session_id: str, *, catch_up: bool) -> OpenedRun:
            return open_run(
                settings.config,
                settings.source,
                settings.target,
                queue=settings.queue,
                owner=identity.owner,
                run_id=run_id,
                until=self.until,
                interval=identity.interval,
                catch_up=catch_up,
                session_id=session_id,
                goes_on=goes_on,
            )

        # Before the lease: what cannot apply keeps nobody else from it. The lanes find the session warm.
        with session_for_lanes(settings.spark, settings.config, settings.target) as session_id:
            try:
                opened = open_it(session_id, catch_up=False)
            except GapAhead as gap:
                wait_or_refuse(context, gap)
                self.log.info("%s: the runs for it have not started, so this one applies it", gap.message)
                opened = open_it(session_id, catch_up=True)
        if opened.nothing_to_do and settings.spark.url is not None:
            release(settings.spark, session_id)
        ti.xcom_push(STATE_KEY, opened.coordinator_state)
        ti.xcom_push(STOP_KEY, {"stop": False})
        ti.xcom_push(OPENED_KEY, opened.to_json())
        self.log.info("generation %s is open, with %s lanes", opened.generation, opened.lanes)
        return [{"lane": lane, "lanes": opened.lanes} for lane in range(opened.lanes)]

    def _captured_as(self, context: Context) -> str | None:
        """The id under which the run's `capture` has frozen its end."""
        ti: Any = context["ti"]
        for task_id in sorted(self.get_flat_relative_ids(upstream=True)):
            task = self.dag.get_task(task_id)
            if isinstance(task, CaptureOperator) and is_same_pipeline(self, task, context):
                found: str | None = ti.xcom_pull(task_ids=task_id, key=RUN_KEY, map_indexes=-1)
                return found
        return None

    def _close(self, context: Context, settings: Settings) -> dict[str, Any]:
        from airflow_parallel_apply.pipeline.run import OpenedRun, close_run, shared_session

        ti = context["ti"]
        value = ti.xcom_pull(task_ids=self.open_task_id, key=OPENED_KEY, map_indexes=-1)
        opened = None if value is None else OpenedRun.from_json(value)
        reports = [] if opened is None or opened.nothing_to_do else _reports(ti.xcom_pull(task_ids=self.apply_task_id))
        if opened is not None and not opened.nothing_to_do:
            try:
                session_id = shared_session(opened, settings.config, settings.target, settings.queue, make=False)
                if session_id is not None:
                    release(settings.spark, session_id)
            except ParallelApplyError as error:
                # What the run did is to be judged all the same.
                self.log.warning("the run's Spark session was not released: %s", error)
        closed = close_run(opened, settings.config, settings.target, reports, queue=settings.queue)
        state = closed.to_json()
        asked = ", as somebody asked" if closed.stopped_early else ""
        self.log.info(
            "stopped%s: all %s channels at seqno %s, %s rows in this run",
            asked,
            closed.channels,
            closed.stop_seqno,
            f"{closed.rows:,}",
        )
        ti.xcom_push(STATE_KEY, {"phase": "stopped", **state})
        return state

    def _stop(self, settings: Settings) -> dict[str, Any]:
        from airflow_parallel_apply.pipeline.run import request_stop

        return request_stop(settings.config.pipeline, settings.target, queue=settings.queue).to_json()

    def _judge_upstream(self, context: Context) -> None:
        """Judge a run that never opened; of any other, the target's positions say what the lanes did.

        Raises: AirflowSkipException when there was nothing to do; FatalError, with the error of each task that failed,
        when something before the lanes did, for a run that was ended before it opened, and for a pipeline that was
        skipped with another one and has something to do.
        """
        ti = context["ti"]
        upstream = sorted(self.get_flat_relative_ids(upstream=True) - {self.apply_task_id})
        found = ti.get_task_states(dag_id=ti.dag_id, task_ids=upstream, run_ids=[ti.run_id])
        states: Mapping[str, str | None] = found.get(ti.run_id, {})
        match states.get(self.open_task_id):
            case TaskInstanceState.SUCCESS:
                return
            case TaskInstanceState.SKIPPED:
                skip = skip_of(self.dag, self.open_task_id, context)
                if skip is None:
                    # A sensor with soft_fail is skipped where it fails.
                    failures = "; ".join(_failures(ti, [name for name in upstream if _error_of(ti, name)]))
                    raise FatalError(failures or _ENDED.format(task_id=self.open_task_id), hint="Clear the whole run.")
                if skip.sensor is not None and not is_same_pipeline(self, skip.sensor, context):
                    self._require_idle(context, skip)
                raise AirflowSkipException(f"the run was skipped: {skip.reason}")
        # Of a mapped task each instance is told by a name of its own, with its index behind the task's.
        failed_ids = {
            name if name in upstream else name.rpartition("_")[0]
            for name, state in states.items()
            if state == TaskInstanceState.FAILED
        }
        failed = sorted(failed_ids)
        if not failed:
            raise FatalError(
                f"{self.open_task_id} has not opened the run: its state is {states.get(self.open_task_id)}",
                hint=f"Clear {self.open_task_id} with everything downstream of it.",
            )
        # The texts name the pipeline.
        raise FatalError("; ".join(_failures(ti, failed)), pipeline="")

    def _require_idle(self, context: Context, skip: Skip) -> None:
        """A pipeline behind another one was skipped since that had nothing to do. Errors: `FatalError` where this one
        has.
        """
        from airflow_parallel_apply.pipeline.admin.watch import look_for_changes

        settings = self.settings()
        interval = interval_of(context.get("data_interval_start"), context.get("data_interval_end"))
        found = look_for_changes(settings.config, settings.source, settings.target, interval=interval)
        if found.reason is None:
            return
        raise FatalError(
            f"nothing was applied, though {found.reason}: {skip.task_id} skipped the tasks behind it, among them those "
            f"of this pipeline ({skip.reason})",
            hint="Let this pipeline run whether or not the one before it had anything to do: give its ParallelApply "
            "default_args={'trigger_rule': 'none_failed'}. Then clear the whole run.",
        )


def _failures(ti: Any, task_ids: Sequence[str]) -> list[str]:
    return [
        f"{task_id} failed: " + (_error_of(ti, task_id) or _NO_MESSAGE.format(task_id=task_id)) for task_id in task_ids
    ]


def _error_of(ti: Any, task_id: str) -> str | None:
    found: str | None = ti.xcom_pull(task_ids=task_id, key=ERROR_KEY, map_indexes=-1)
    return found


def _reports(pulled: object) -> list[dict[str, Any]]:
    """Acknowledgements that are there: retries wipe XComs, and one lane alone does not come as a list."""
    rows = pulled if isinstance(pulled, list) else [pulled]
    return [row for row in rows if isinstance(row, dict)]
