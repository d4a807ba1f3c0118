"""What every backend refuses before it looks at a task: calls that no state of the queue could make right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from airflow_parallel_apply.queue.model import Change, Insert, TaskId, TaskRef

MAX_QUEUE_NAME_BYTES: Final = 512


def check_modify(
    insert: Sequence[Insert], change: Sequence[Change], delete: Sequence[TaskRef], depend: Sequence[TaskRef]
) -> None:
    """Raise ValueError where ids repeat, in one list or over them, or a name or a sequence cannot be."""
    named: list[TaskId] = [entry.task_id for entry in insert if entry.task_id is not None]
    named += [entry.ref.task_id for entry in change]
    named += [ref.task_id for ref in (*delete, *depend)]
    repeated = [str(task_id) for task_id, count in Counter(named).items() if count > 1]
    if repeated:
        raise ValueError(f"the ids of a modify must be disjoint, more than once: {', '.join(repeated)}")
    check_names([entry.queue for entry in insert])
    check_names([entry.queue for entry in change if entry.queue is not None])
    for entry in change:
        if entry.sequence is not None and entry.queue is None:
            raise ValueError(f"change of {entry.ref.task_id}: a sequence is given only with a move to another queue")


def check_names(queues: Iterable[str]) -> None:
    """Raise ValueError unless each is the name of a queue."""
    for queue in queues:
        if not queue or "\0" in queue or len(queue.encode()) > MAX_QUEUE_NAME_BYTES:
            raise ValueError(f"a queue's name has 1 to {MAX_QUEUE_NAME_BYTES} bytes and no NUL: {queue!r}")
