"""One pipeline's rows in a router: read from its log once, divided by its routing, kept until the target has them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import ParallelApplyError, Unavailable
from airflow_parallel_apply.pipeline.log.mark import Mark
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.store.memory.subject import Subject
from airflow_parallel_apply.pipeline.store.protocol import StoreStats, Stretch
from airflow_parallel_apply.pipeline.stream.ticket import Ticket, TicketKind
from airflow_parallel_apply.router.engine import (
    Budget,
    Engine,
    PlacedRoutes,
    Tagged,
    WindowOutput,
    window_engine,
)
from airflow_parallel_apply.router.feeding.guard import GuardLimits, IntervalGuard
from airflow_parallel_apply.router.feeding.history import ReadHistory
from airflow_parallel_apply.router.feeding.source import rows_of
from airflow_parallel_apply.router.feeding.stretches import ToldStretches

_logger = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 60.0
"""The longest that a stream waits for the log to be read on; then its caller asks again, and the log answers."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    channel: int
    after_seqno: int
    last_seqno: int

    def touches(self, channel: int, after_seqno: int, last_seqno: int) -> bool:
        return channel == self.channel and after_seqno < self.last_seqno and self.after_seqno < last_seqno


class Feeding:
    """Thread-safe. `name`: of the log at the router. Begins with the first stretch; one thread reads the log."""

    def __init__(
        self,
        subject: Subject,
        name: str,
        log: LogReader,
        *,
        budget: Budget,
        directory: Path,
        guard: GuardLimits,
    ) -> None:
        self.subject = subject
        self.name = name
        self._log = log
        self._budget = budget
        self._directory = directory
        self._guard = IntervalGuard(guard)
        self._told = ToldStretches()
        self._history = ReadHistory()
        self._lock = threading.Lock()
        self._engine: Engine[WindowOutput] | None = None
        self._thread: threading.Thread | None = None
        self._doubts: list[_Doubt] = []
        self._taken = [NO_SEQNO] * subject.routing.channels
        """By channel: the last seqno that was streamed, or that the target has."""
        self.failure = ""
        """Why nothing is read any more; what was asked for is then answered from the log."""

    def tell(self, stretch: Stretch) -> None:
        """Hold a stretch. What was told before changes nothing."""
        with self._lock:
            self._told.tell(stretch)
            if self._engine is not None or self._told.after_seqno is None:
                return
            partitioner = open_partitioner(self.subject.routing)

            def place(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
                relations = {relation.relation_id: relation for relation in self._log.state().relations}
                return partitioner.place(batch, relations).channels

            channels = self.subject.routing.channels
            self._engine = window_engine(
                budget=self._budget,
                directory=self._directory,
                routes=PlacedRoutes(place, channels),
                after_seqno=self._told.after_seqno,
            )
            self._thread = threading.Thread(
                target=self._run, args=(self._engine,), name=f"feed {self.subject.pipeline}", daemon=True
            )
            self._thread.start()

    def holds(self, channel: int, after_seqno: int, last_seqno: int, mark: Mark | None = None) -> bool:
        """True if the rows of a channel are here, or will be without anybody doing anything. `mark`: of the last
        transaction, as whoever asks finds it in the log. Where that is another one than was read, nothing is held.
        """
        engine = self._engine
        if mark is not None and self._history.differs(last_seqno, mark):
            self.failure = f"the log has another transaction {last_seqno} than the one that was read"
        return (
            engine is not None
            and not self.failure
            and self._told.contain(after_seqno, last_seqno)
            and engine.output(channel).start_seqno <= after_seqno
            and not any(doubt.touches(channel, after_seqno, last_seqno) for doubt in tuple(self._doubts))
        )

    def forget(self, channel: int, after_seqno: int, last_seqno: int) -> None:
        """Do not answer with these rows any more."""
        with self._lock:
            self._doubts.append(_Doubt(channel, after_seqno, last_seqno))

    def trim(self, positions: Mapping[int, int]) -> None:
        """Let go of what these positions, by channel, have passed."""
        engine = self._engine
        if engine is None:
            return
        for channel, seqno in positions.items():
            engine.output(channel).trim(seqno)
            self._pass(channel, seqno)
        low = min(positions.values(), default=NO_SEQNO)
        self._told.trim(low)
        self._history.trim(low)
        with self._lock:
            self._doubts = [doubt for doubt in self._doubts if doubt.last_seqno > positions.get(doubt.channel, low)]

    def answer(self, ticket: Ticket) -> Iterator[pa.RecordBatch] | None:
        """The rows of a ticket; None where they are not all held."""
        engine, channel = self._engine, ticket.channel
        if engine is None or channel is None or ticket.kind is not TicketKind.ROWS or ticket.in_order:
            return None
        if ticket.after_fragno is not None or not self.holds(channel, ticket.after_seqno, ticket.last_seqno):
            return None
        found = engine.output(channel).reading(ticket.after_seqno, ticket.last_seqno, timeout=_WAIT_SECONDS)
        return None if found is None else self._given(found, ticket, channel)

    def stats(self) -> tuple[StoreStats, ...]:
        """By channel."""
        engine = self._engine
        if engine is None:
            return ()
        return tuple(
            StoreStats(
                channel=one.number,
                row_count=one.rows,
                file_bytes=one.waiting_disk_bytes,
                file_count=0,
                memory_bytes=one.waiting_memory_bytes,
                most_memory_bytes=one.high_memory_bytes,
                most_file_bytes=one.high_disk_bytes,
                blocked_seconds=one.blocked_seconds,
            )
            for one in engine.stats()
        )

    @property
    def held_seqno(self) -> int:
        """The last seqno that was told."""
        last = self._told.last_seqno
        return NO_SEQNO if last is None else last

    @property
    def waited_seconds(self) -> float:
        """Time that the interval guard took."""
        return self._guard.waited_seconds

    def close(self) -> None:
        """Release every reader and all that is held. Idempotent."""
        self._told.close()
        self._guard.close()
        with self._lock:
            engine, thread = self._engine, self._thread
        if engine is not None:
            engine.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self, engine: Engine[WindowOutput]) -> None:
        try:
            engine.run(rows_of(self._log, self._told, self._guard.wait, self._history))
        except (ParallelApplyError, pa.ArrowException, OSError) as error:
            self.failure = str(error)
            _logger.warning("%s is not fed any more, its log answers: %s", self.subject.pipeline, error)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            _logger.exception("%s is not fed any more, its log answers", self.subject.pipeline)
        finally:
            self._told.close()

    def _given(self, found: Generator[Tagged], ticket: Ticket, channel: int) -> Iterator[pa.RecordBatch]:
        reached = self._reached(channel)
        is_waiting = reached < ticket.last_seqno
        if is_waiting:
            self._guard.reader(1)
        try:
            with closing(found) as items:
                for tagged in items:
                    rows = _wanted(tagged, ticket)
                    if rows.num_rows:
                        yield rows
            self._pass(channel, ticket.last_seqno)
        except TimeoutError as error:
            raise Unavailable(f"the router did not read on: {error}", op="stream", channel=channel) from error
        finally:
            if is_waiting:
                self._guard.reader(-1)

    def _reached(self, channel: int) -> int:
        engine = self._engine
        return NO_SEQNO if engine is None else engine.output(channel).reached_seqno

    def _pass(self, channel: int, seqno: int) -> None:
        engine = self._engine
        if engine is None:
            return
        with self._lock:
            self._taken[channel] = max(self._taken[channel], seqno)
            # A channel that nothing waits for lies behind nobody.
            behind = [
                self._taken[one.number] for one in engine.stats() if one.waiting_memory_bytes or one.waiting_disk_bytes
            ]
            self._guard.passed(min(behind, default=max(self._taken)))


def _wanted(tagged: Tagged, ticket: Ticket) -> pa.RecordBatch:
    """The rows of an item that a ticket names; those of other seqnos came with the same segment."""
    rows = tagged.batch
    if tagged.first_seqno <= ticket.after_seqno or tagged.last_seqno > ticket.last_seqno:
        seqnos = rows.column("seqno")
        rows = rows.filter(pc.and_(pc.greater(seqnos, ticket.after_seqno), pc.less_equal(seqnos, ticket.last_seqno)))
    if ticket.buckets is not None:
        first, last = ticket.buckets
        buckets = rows.column("bucket")
        rows = rows.filter(pc.and_(pc.greater_equal(buckets, first), pc.less_equal(buckets, last)))
    return rows if ticket.columns is None else rows.select(list(ticket.columns))
