"""The store `memory`, as whoever stages sees it: a stream for each unit that the router holds, else the log."""

from __future__ import annotations

import logging
from typing import Final

from airflow_parallel_apply.pipeline.config import RouterEndpoint
from airflow_parallel_apply.pipeline.log.mark import mark_of
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.log import LogStore
from airflow_parallel_apply.pipeline.store.memory.link import RouterLink
from airflow_parallel_apply.pipeline.store.memory.subject import FORGET, HELD, Subject
from airflow_parallel_apply.pipeline.store.protocol import ALL_ROWS, StoreBranch, StreamBranch
from airflow_parallel_apply.pipeline.stream.ticket import Ticket

_logger = logging.getLogger(__name__)

_DOUBTS: Final = 3
"""Units that could not be read as a stream, after which no more are: Spark may not reach the router."""


class MemoryStore:
    """See `Store`. Thread-safe where the reader is."""

    def __init__(self, log: LogReader, router: RouterEndpoint | None) -> None:
        self._log = log
        self._behind = LogStore(log)
        self._link = RouterLink(router)
        self._doubts = 0
        self._told = ""

    def branch(self, unit: Unit, *, parts: int = 1) -> StoreBranch:
        """A stream is read by one task, so a channel with more rows than others is read from the log, in parts."""
        if isinstance(unit.kind, Branch) and self._doubts < _DOUBTS and self._behind.parts(unit, parts) == 1:
            ticket = self._ticket(unit, unit.kind.channel)
            if ticket is not None:
                return StreamBranch(
                    address=self._link.url,
                    tickets=(ticket.to_bytes(),),
                    after_seqno=unit.after_seqno,
                    last_seqno=unit.last_seqno,
                    condition=ALL_ROWS,
                )
        return self._behind.branch(unit, parts=parts)

    def doubt(self, unit: Unit) -> None:
        self._doubts += 1
        if self._doubts == _DOUBTS:
            self._tell(f"{_DOUBTS} of its streams could not be read")
        if isinstance(unit.kind, Branch):
            self._link.call(FORGET, self._body(unit, unit.kind.channel))

    def close(self) -> None:
        self._link.close()

    def _ticket(self, unit: Unit, channel: int) -> Ticket | None:
        """The ticket of a unit; None where the router does not hold all of its rows, or does not answer."""
        mark = mark_of(self._log, unit.last_seqno)
        if mark is None:
            return None
        body = self._body(unit, channel) | {"end_offset": mark.end_offset, "commit_time": mark.commit_time}
        answer = self._link.call(HELD, body)
        if answer is None:
            self._tell(self._link.failure)
        if answer is None or not answer["held"]:
            return None
        return Ticket(
            log=str(answer["log"]),
            log_id=self._log.identity.log_id,
            pipeline=unit.pipeline,
            routing=unit.routing or Routing(channels=unit.channels),
            channel=channel,
            after_seqno=unit.after_seqno,
            last_seqno=unit.last_seqno,
        )

    def _tell(self, why: str) -> None:
        """Once for each reason: what follows is slower, and as right."""
        if why != self._told:
            self._told = why
            _logger.warning("the store memory is not served, the log serves its channels: %s", why)

    def _body(self, unit: Unit, channel: int) -> dict[str, object]:
        routing = unit.routing or Routing(channels=unit.channels)
        return {
            **Subject.of_pipeline(self._log, unit.pipeline, routing).to_json(),
            "channel": channel,
            "after_seqno": unit.after_seqno,
            "last_seqno": unit.last_seqno,
        }
