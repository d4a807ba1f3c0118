"""Feeds the store `memory`: tells the router which stretches to hold, and which positions have passed.

The router reads its log itself, in its own time, so a call costs no more than a message.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.config import RouterEndpoint, StoreName
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.store.memory.link import RouterLink
from airflow_parallel_apply.pipeline.store.memory.subject import FEED, STATS, TRIM, Subject
from airflow_parallel_apply.pipeline.store.protocol import Split, StoreStats, StoreStatus, Stretch


class MemoryFeeder:
    """See `Feeder`. What is told again changes nothing, so it need not know what is held."""

    def __init__(self, subject: Subject, router: RouterEndpoint | None) -> None:
        self._subject = subject.to_json()
        self._link = RouterLink(router)

    def lacks(self, stretch: Stretch) -> tuple[Stretch, ...]:
        return (stretch,)

    def feed(self, stretch: Stretch, split: Split) -> int:
        del split
        self._call(FEED, stretches=[[stretch.after_seqno, stretch.last_seqno]])
        return 0

    def abandon(self) -> None:
        """Nothing is begun here."""

    def trim(self, positions: Sequence[Position]) -> int:
        self._call(TRIM, positions={str(position.channel): position.seqno for position in positions})
        return 0

    def status(self) -> StoreStatus:
        """With the reason, where the router does not answer."""
        found = self._link.call(STATS, self._subject)
        channels = () if found is None else tuple(StoreStats(**one) for one in found["channels"])
        return StoreStatus(
            name=StoreName.MEMORY,
            held_seqno=-1 if found is None else int(found["held_seqno"]),
            row_count=sum(one.row_count for one in channels),
            file_bytes=sum(one.file_bytes for one in channels),
            file_count=0,
            memory_bytes=sum(one.memory_bytes for one in channels),
            place=self._link.place,
            failure=self._link.failure if found is None else str(found["failure"]),
            channels=channels,
        )

    def close(self) -> None:
        self._link.close()

    def _call(self, action: str, **body: object) -> None:
        """Errors: `LogError` where the router does not answer."""
        if self._link.call(action, {**self._subject, **body}) is None:
            raise LogError(self._link.failure or "the router does not answer")
