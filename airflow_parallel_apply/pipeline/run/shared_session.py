"""The id of the session that a generation's lanes share at their Spark, kept where only its own tasks look.

Whoever knows the id, and may speak to the server, can join the session and end its jobs. XComs are for everybody who
may look at the DAG; so the id is a parked task of the generation in the queue, and goes with its other tasks. A queue
that was lost loses the id with it: the first lane that asks puts another, and the former session ends by its timeout.
So does the first lane to find that the server has closed the session, as after an hour in which no lane asked for
anything.
"""

from __future__ import annotations

from contextlib import closing, suppress
from uuid import uuid4

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, QueueEndpoint
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, Names
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.run.pipeline_queue import open_pipeline_queue
from airflow_parallel_apply.pipeline.run.sessions import claimant_of
from airflow_parallel_apply.pipeline.run.values import OpenedRun
from airflow_parallel_apply.pipeline.target.open import open_target
from airflow_parallel_apply.queue.model import Change, DependencyError, Insert, QueueError
from airflow_parallel_apply.queue.protocol import Queue

_KEY = "session_id"


def keep_session(queue: Queue, names: Names, session_id: str) -> str:
    """Put the id there, unless another is; returns the one that is there."""
    queue.modify(
        claimant=claimant_of("open"),
        insert=[
            Insert(
                queue=names.coordinator,
                value={_KEY: session_id},
                at=PARKED,
                task_id=names.task_id("session"),
                skip_colliding=True,
            )
        ],
    )
    return _read(queue, names) or session_id


def shared_session(
    opened: OpenedRun,
    config: PipelineConfig,
    target: Endpoint,
    queue: QueueEndpoint | None,
    *,
    make: bool,
    closed: str | None = None,
) -> str | None:
    """The id of the run's session; where there is none, a new one with `make`, else None. `closed`: an id that the
    server has closed, in whose place another one is put. Errors: `Unavailable`.
    """
    try:
        with (
            closing(open_target(target, config.pipeline)) as reading,
            closing(open_pipeline_queue(reading, target, queue, config.pipeline)) as tasks,
        ):
            names = tasks.names(opened.generation)
            if closed is not None:
                _replace(tasks.queue, names, closed)
            found = _read(tasks.queue, names)
            return keep_session(tasks.queue, names, str(uuid4())) if found is None and make else found
    except QueueError as error:
        raise Unavailable(f"the queue does not know the run's Spark session: {error}", op="spark") from error


def _read(queue: Queue, names: Names) -> str | None:
    found = queue.tasks(names.coordinator, ids=[names.task_id("session")])
    return str(found[0].value[_KEY]) if found else None


def _replace(queue: Queue, names: Names, closed: str) -> None:
    """Put another id there. Of several lanes that do so at once one wins, and the others read its id."""
    for kept in queue.tasks(names.coordinator, ids=[names.task_id("session")]):
        if kept.value[_KEY] == closed:
            another = Change(ref=kept.ref, value={_KEY: str(uuid4())}, at=PARKED, claimed=False)
            with suppress(DependencyError):
                queue.modify(claimant=claimant_of("lane"), change=[another])
