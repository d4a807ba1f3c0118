"""QueueHook: the queue, for the tasks of any DAG."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseHook

from airflow_parallel_apply.hooks.connections import QUEUE_TYPE, queue
from airflow_parallel_apply.pipeline.config import QueueEndpoint

if TYPE_CHECKING:
    from airflow_parallel_apply.queue import Queue, QueueStats


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Counts of several queues: sums, and the most claims of any task. Queues without tasks are not counted."""

    queues: int = 0
    size: int = 0
    available: int = 0
    claimed: int = 0
    future: int = 0
    max_claims: int = 0

    @classmethod
    def of(cls, found: Sequence[QueueStats]) -> QueueCounts:
        """Add up the statistics of each queue."""
        return cls(
            queues=len(found),
            size=sum(stats.size for stats in found),
            available=sum(stats.available for stats in found),
            claimed=sum(stats.claimed for stats in found),
            future=sum(stats.future for stats in found),
            max_claims=max((stats.max_claims for stats in found), default=0),
        )

    def lies_within(self, measure: str, *, at_least: int | None, at_most: int | None) -> bool:
        """True if the count named `measure` lies within the bounds; None is no bound."""
        count: int = getattr(self, measure)
        return (at_least is None or count >= at_least) and (at_most is None or count <= at_most)

    def to_json(self) -> dict[str, int]:
        """For XCom."""
        return asdict(self)


MEASURES: Final = tuple(count.name for count in fields(QueueCounts))


class QueueHook(BaseHook):
    """A queue behind a service or in a PostgreSQL database.

        with closing(QueueHook("orders_queue").get_conn()) as queue:
            queue.modify(claimant="me", insert=[Insert(queue="orders", value={"order": 17})])

    :param queue_conn_id: a connection of type ``parallel_apply_queue``, ``parallel_apply`` or ``postgres``
    """

    conn_name_attr = "queue_conn_id"
    default_conn_name = "parallel_apply_queue"
    conn_type = QUEUE_TYPE
    hook_name = "Parallel Apply Queue"

    def __init__(self, queue_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.queue_conn_id = queue_conn_id

    @property
    def endpoint(self) -> QueueEndpoint:
        """The connection, resolved and checked by type. Errors: `ConfigurationError`."""
        return queue(self.queue_conn_id, parameter=self.conn_name_attr)

    def get_conn(self) -> Queue:
        """The queue; connects at the first call. The caller closes it."""
        from airflow_parallel_apply.queue import open_queue

        return open_queue(self.endpoint.dsn)

    def counts(self, queues: Sequence[str] = (), prefix: Sequence[str] = ()) -> QueueCounts:
        """Sums over the queues of these names, or with these beginnings; over all queues when both are empty."""
        with closing(self.get_conn()) as opened:
            return QueueCounts.of(opened.queue_stats(exact=queues, prefix=prefix))

    def test_connection(self) -> tuple[bool, str]:
        """Answer the button Test of the connection form."""
        from airflow_parallel_apply.pipeline.errors import ParallelApplyError
        from airflow_parallel_apply.queue import QueueError

        try:
            found = self.counts()
        except (QueueError, ParallelApplyError, ValueError) as error:
            return False, str(error)
        return True, f"{found.queues:,} queues with {found.size:,} tasks"
