"""The buffering router: one source, many outputs, and no output that holds up another.

The thread that calls `run` reads the source, divides each batch and puts the pieces. While at least one output can take
rows, it reads on; what blocked outputs cannot take waits in memory, and what that cannot hold on disk, oldest first.
When all outputs are blocked, it stops reading, until a consumer changes that. So consumers may depend on one another in
any way, and a source that is faster than all of them is not stored.

Whether to stop is asked once for some batches, and at once when a consumer wants no more. Until then what was routed
counts as waiting, so that memory stays within the budget; beside it there is the batch that is being divided.

Another thread writes what is spilled, so that an output that is blocked costs the others no time where there is a core
for it. At most one piece is on its way to the disk; the next one waits for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from airflow_parallel_apply.pipeline.errors import RoutingCancelled
from airflow_parallel_apply.router.engine.budget import Budget
from airflow_parallel_apply.router.engine.container import Container
from airflow_parallel_apply.router.engine.items import Piece, Reached, Tagged
from airflow_parallel_apply.router.engine.output import Output
from airflow_parallel_apply.router.engine.routes import Routes
from airflow_parallel_apply.router.engine.states import PHASES, Demand, Phase, moved
from airflow_parallel_apply.router.engine.stats import OutputStats

_CHECK_PART: Final = 64
_CHECK_BYTES: Final = 2**20
"""After so many routed bytes at most, and after this part of the budget, the engine asks whether to stop."""

AnyOutput = TypeVar("AnyOutput", bound=Output)


class Engine(Generic[AnyOutput]):
    """One life: `run` once. `make_output`: a kind of `Output`. `directory`: for spill files. `clock`: monotonic
    seconds, for statistics.
    """

    def __init__(
        self,
        make_output: Callable[..., AnyOutput],
        *,
        routes: Routes,
        budget: Budget,
        directory: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes = routes
        self._budget = budget
        self._clock = clock
        self._condition = threading.Condition()
        self._phase = Phase.NEW
        self._error: BaseException | None = None
        self._counting = threading.Lock()
        self._counted_bytes = 0
        self._unchecked_bytes = 0
        self._check_bytes = min(_CHECK_BYTES, budget.memory.limit_bytes // _CHECK_PART)
        self._demand_changed = False
        self._stop_count = 0
        self._writing: Future[None] | None = None
        self._outputs: Sequence[AnyOutput] = [
            make_output(
                number,
                container=Container(directory, budget.disk) if budget.spills else None,
                on_change=self._consumer_changed,
            )
            for number in range(routes.outputs)
        ]

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return self._phase

    @property
    def stop_count(self) -> int:
        """How many times it has stopped reading."""
        return self._stop_count

    def output(self, number: int) -> AnyOutput:
        """Return the output of this number, from 0."""
        return self._outputs[number]

    def stats(self) -> tuple[OutputStats, ...]:
        """By output."""
        return tuple(output.stats() for output in self._outputs)

    def run(self, source: Iterator[Tagged | Reached]) -> None:
        """Route everything that the source yields, each item before it is asked for the next; then close it. Returns
        when it has ended, when no output needs more, and after `cancel`. Errors: the source's, the routes', and
        `SpillFull`, after every open output was told.
        """
        try:
            if self._begin():
                self._route(source)
        finally:
            close: Callable[[], Any] | None = getattr(source, "close", None)
            if close is not None:
                close()

    def cancel(self, error: BaseException | None = None) -> None:
        """Let go of everything at once, from any thread: readers raise the error, or `RoutingCancelled`, and `run`
        returns once its source lets it. Nothing where that has happened already.
        """
        self._end(Phase.CANCELLED, error or RoutingCancelled("the router let go of its rows", op="route"))

    def __enter__(self) -> Engine[AnyOutput]:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _begin(self) -> bool:
        """False where it was cancelled before. Errors: `ValueError` for a second run."""
        with self._condition:
            if self._phase is Phase.CANCELLED:
                return False
            self._phase = moved(self._phase, Phase.RUNNING, PHASES)
        self._budget.memory.share(len(self._outputs))
        return True

    def _route(self, source: Iterator[Tagged | Reached]) -> None:
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="spill") as writer:
                self._route_until_over(source, writer)
                self._settle()
        except BaseException as error:
            self._end(Phase.FAILED, error)
            raise
        finally:
            self._note([False] * len(self._outputs))
            self._budget.memory.share(-len(self._outputs))
        self._end(Phase.ENDED)

    def _route_until_over(self, source: Iterator[Tagged | Reached], writer: ThreadPoolExecutor) -> None:
        last: Tagged | None = None
        for item in source:
            if not self._phase.is_live:
                return
            if isinstance(item, Reached):
                for output in self._outputs:
                    output.reach(item.seqno)
            else:
                if last is not None:
                    _check_order(last, item)
                last = item
                self._put(item, writer)
            if self._unchecked_bytes > self._check_bytes or self._demand_changed:
                self._check()
                if not self._phase.is_live:
                    return

    def _put(self, item: Tagged, writer: ThreadPoolExecutor) -> None:
        memory = self._budget.memory
        most: Output | None = None
        for number, batch in self._routes.split(item.batch):
            output = self._outputs[number]
            piece = Piece.of(batch, item)
            self._unchecked_bytes += piece.nbytes
            is_full = self._unchecked_bytes > memory.free_bytes
            output.put(piece, is_full=is_full)
            if is_full and self._budget.spills:
                most = most or max(self._outputs, key=_memory_bytes)
                # What is in a look-aside cannot be spilled.
                write = most.spill(piece.nbytes) or output.spill(piece.nbytes)
                if write is not None:
                    self._settle()
                    self._writing = writer.submit(write)

    def _settle(self) -> None:
        """Wait for what is on its way to the disk. Errors: `SpillFull`."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _check(self) -> None:
        """Account for what waits; then wait while the engine has to stand still."""
        self._unchecked_bytes = 0
        self._demand_changed = False
        self._account()
        if not self._is_wanted():
            self._end(Phase.DRAINED)
            return
        # Where memory is free, an output may hold more than its even part and is not blocked by that.
        part = max(self._budget.memory.even_bytes, self._budget.memory.free_bytes)
        blocked = [output.is_blocked(part) for output in self._outputs]
        self._note(blocked)
        if self._stops(blocked):
            self._stand_still(part)
            self._account()
            self._note([output.is_blocked(part) for output in self._outputs])
            if not self._is_wanted():
                self._end(Phase.DRAINED)

    def _stand_still(self, part_bytes: int) -> None:
        """Half of its part has to be free again, so that the two sides do not wake each other for each piece."""
        for output in self._outputs:
            output.resume_bytes = part_bytes // 2
        with self._condition:
            if not self._phase.is_live:
                return
            self._phase = moved(self._phase, Phase.STOPPED, PHASES)
            self._stop_count += 1
            # Consumers change an output first and look at the phase then; here it is the other way round.
            while self._phase is Phase.STOPPED and not self._may_go_on():
                self._condition.wait()
            if self._phase is Phase.STOPPED:
                self._phase = moved(self._phase, Phase.RUNNING, PHASES)

    def _may_go_on(self) -> bool:
        blocked = [output.is_blocked(output.resume_bytes) for output in self._outputs]
        return not self._stops(blocked) or not self._is_wanted()

    def _stops(self, blocked: Sequence[bool]) -> bool:
        """Without a disk there is no place for what a blocked output cannot take."""
        open_ones = [
            is_blocked
            for is_blocked, output in zip(blocked, self._outputs, strict=True)
            if output.demand is Demand.NEEDS_MORE
        ]
        return all(open_ones) if self._budget.spills else any(open_ones)

    def _is_wanted(self) -> bool:
        return any(output.demand is Demand.NEEDS_MORE for output in self._outputs)

    def _note(self, blocked: Sequence[bool]) -> None:
        now = self._clock()
        for output, is_blocked in zip(self._outputs, blocked, strict=True):
            output.note_blocked(is_blocked, now)

    def _consumer_changed(self, output: Output) -> None:
        """A consumer's thread: it has taken something, waits, or wants no more."""
        phase = self._phase
        if phase is Phase.STOPPED and not output.is_blocked(output.resume_bytes):
            with self._condition:
                self._condition.notify_all()
        elif output.demand is not Demand.NEEDS_MORE:
            self._demand_changed = True
        if not phase.is_live:
            self._account()

    def _account(self) -> None:
        """Tell the budget what waits in memory now. The router's thread does it while rows come, readers afterwards."""
        with self._counting:
            used = sum(output.memory_bytes for output in self._outputs)
            self._budget.memory.change(used - self._counted_bytes)
            self._counted_bytes = used
        self._budget.make_room()

    def _end(self, phase: Phase, error: BaseException | None = None) -> None:
        with self._condition:
            if phase not in PHASES[self._phase]:
                return
            self._phase = moved(self._phase, phase, PHASES)
            self._condition.notify_all()
        for output in self._outputs:
            output.finish(error)
        self._account()


def _memory_bytes(output: Output) -> int:
    return output.memory_bytes


def _check_order(last: Tagged, item: Tagged) -> None:
    if item.first_seqno < last.first_seqno or item.last_seqno < last.last_seqno:
        raise ValueError(
            f"seqnos {item.first_seqno} to {item.last_seqno} come behind {last.first_seqno} to {last.last_seqno}"
        )
