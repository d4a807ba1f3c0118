"""An output that is read once, in order.

A piece passes up to three places, and is older the further left it is::

    reader ◀── look-aside ◀── disk ◀── memory ◀── router
               two pieces,    spilled   the rest
               no lock        oldest first

The router appends to the look-aside as long as nothing is behind it, so a reader that keeps up never meets a lock, nor
does the router. Once something is behind, the reader alone refills the look-aside, many pieces at a time. Appending to
a deque and taking from it are atomic, and one thread does each. `_is_behind` is set by the router, and cleared under
the lock once both other places are empty: where it is not set, nothing is older than what the look-aside will get next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from airflow_parallel_apply.router.engine.budget import Budget
from airflow_parallel_apply.router.engine.container import Container, Place
from airflow_parallel_apply.router.engine.engine import Engine
from airflow_parallel_apply.router.engine.items import Piece, Tagged
from airflow_parallel_apply.router.engine.output import Output
from airflow_parallel_apply.router.engine.routes import Routes
from airflow_parallel_apply.router.engine.states import Demand

LOOK_ASIDE: Final = 2
"""Pieces that wait without a lock."""

REFILL: Final = 16
"""Pieces that a reader takes at a time from what waits in memory."""


@dataclass(slots=True, eq=False)
class _Spilled:
    """A piece that counts as spilled: in memory until it is written, then at its place."""

    piece: Piece | None
    first_seqno: int
    last_seqno: int
    rows: int
    nbytes: int
    place: Place | None = None
    is_gone: bool = False


class StreamOutput(Output):
    """See the module. One thread reads it at a time."""

    def __init__(self, number: int, *, container: Container | None, on_change: Callable[[Output], None]) -> None:
        super().__init__(number, container=container, on_change=on_change)
        self._look_aside: deque[Piece] = deque()
        self._disk: deque[_Spilled] = deque()
        self._memory: deque[Piece] = deque()
        self._is_behind = False
        self._disk_bytes = 0
        # Bytes of all pieces so far, each written by one side alone.
        self._put_bytes = 0
        self._taken_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return max(0, self._put_bytes - self._taken_bytes - self._disk_bytes) if self._holds else 0

    @property
    def spilled_bytes(self) -> int:
        return self._disk_bytes

    def read(self, timeout: float | None = None) -> Tagged | None:
        """The next rows; None at the end, and for a consumer that wants no more. Waits at most `timeout` seconds; for
        ever with None. Errors: what the engine failed with; `RoutingCancelled`; `TimeoutError`.
        """
        while True:
            try:
                piece = self._look_aside.popleft()
            except IndexError:
                # Asked first: what was put before the end is found by the refill behind it.
                is_ended = self._is_ended
                if not self._refill():
                    if is_ended:
                        return None
                    self._wait_for(self._has_next, timeout)
                continue
            self._taken_bytes += piece.nbytes
            self._on_change(self)
            return piece.tagged

    def __iter__(self) -> Iterator[Tagged]:
        while (found := self.read()) is not None:
            yield found

    def _keep(self, piece: Piece, is_full: bool) -> None:
        fits = not is_full or self._waiting_readers > 0
        if fits and not self._is_behind and len(self._look_aside) < LOOK_ASIDE:
            self._put_bytes += piece.nbytes
            self._look_aside.append(piece)
            if not self._holds:
                # The consumer has let go of everything since this was asked.
                self._look_aside.clear()
            self._wake()
            return
        with self._condition:
            if self._holds:
                self._put_bytes += piece.nbytes
                self._memory.append(piece)
                self._is_behind = True
                self._condition.notify_all()

    def _spill(self, container: Container, nbytes: int) -> Callable[[], None] | None:
        chosen: list[_Spilled] = []
        before = self._disk_bytes
        while self._memory and self._disk_bytes < before + nbytes:
            piece = self._memory.popleft()
            tagged = piece.tagged
            chosen.append(_Spilled(piece, tagged.first_seqno, tagged.last_seqno, tagged.batch.num_rows, piece.nbytes))
            self._disk_bytes += piece.nbytes
        self._disk.extend(chosen)
        return partial(self._write, container, chosen) if chosen else None

    def _write(self, container: Container, chosen: Sequence[_Spilled]) -> None:
        for spilled in chosen:
            piece = spilled.piece
            if piece is None:
                continue
            place = container.write(piece.tagged.batch)
            with self._condition:
                if not spilled.is_gone:
                    spilled.place, spilled.piece, place = place, None, None
            if place is not None:
                container.free(place)

    def _refill(self) -> bool:
        """Move what waits behind into the look-aside; False where there is nothing in either."""
        with self._condition:
            self._check_error()
            if not self._disk:
                for _ in range(min(REFILL, len(self._memory))):
                    self._look_aside.append(self._memory.popleft())
                self._is_behind = bool(self._memory)
                return bool(self._look_aside)
            spilled = self._disk.popleft()
            self._disk_bytes -= spilled.nbytes
            spilled.is_gone = True
            piece, place = spilled.piece, spilled.place
            spilled.piece = None
        if piece is not None:
            self._look_aside.append(piece)
            return True
        if self._container is None or place is None:
            raise ValueError("spilled without a container")
        # Without the lock. Still behind, so the router puts nothing into the look-aside meanwhile.
        batch = self._container.read(place)
        if batch is not None:
            self._container.free(place)
            self._look_aside.append(Piece(Tagged(batch, spilled.first_seqno, spilled.last_seqno), spilled.nbytes))
        return True

    @property
    def _is_ended(self) -> bool:
        return self._is_over or self._demand is Demand.CLOSED

    def _has_next(self) -> bool:
        return bool(self._look_aside) or self._is_behind or self._is_ended

    def _discard(self) -> int:
        rows: int = sum(spilled.rows for spilled in self._disk)
        rows += sum(piece.tagged.batch.num_rows for piece in (*self._look_aside, *self._memory))
        for spilled in self._disk:
            spilled.is_gone, spilled.piece = True, None
            if spilled.place is not None and self._container is not None:
                self._container.free(spilled.place)
        self._look_aside.clear()
        self._memory.clear()
        self._disk.clear()
        self._is_behind = False
        self._disk_bytes = 0
        return rows


def stream_engine(*, routes: Routes, budget: Budget, directory: Path) -> Engine[StreamOutput]:
    """An engine whose outputs are read once, in order."""
    return Engine(StreamOutput, routes=routes, budget=budget, directory=directory)
