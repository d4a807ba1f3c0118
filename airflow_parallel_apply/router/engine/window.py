"""An output that keeps what it was given, for readers that ask for ranges of seqnos, again and again.

What nobody has read yet waits: in memory, or on disk, oldest first. What was read at least once is kept in memory as
long as nothing that waits wants that memory; what was read from the disk stays there. `trim` lets go of both. An item
is in one of five states::

    put ──▶ WAITING IN MEMORY ──spill──▶ WAITING ON DISK
                 │ read                       │ read
                 ▼                            ▼
            KEPT IN MEMORY ──▶ GONE      KEPT ON DISK
                 └───── evicted while a reading has it ahead ──▲

A range is either held whole or not answered at all, so that whoever asks learns before its first row that it has to
look elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakSet

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import RoutingCancelled, SpillFull
from airflow_parallel_apply.router.engine.budget import Budget, Cache
from airflow_parallel_apply.router.engine.container import Container, Place
from airflow_parallel_apply.router.engine.engine import Engine
from airflow_parallel_apply.router.engine.items import Piece, Tagged
from airflow_parallel_apply.router.engine.output import Output
from airflow_parallel_apply.router.engine.routes import Routes


@dataclass(slots=True, eq=False)
class _Item:
    """One piece. In memory, on disk, both for a moment, or gone."""

    number: int
    first_seqno: int
    last_seqno: int
    rows: int
    nbytes: int
    batch: pa.RecordBatch | None
    place: Place | None = None
    was_read: bool = False
    is_spilled: bool = False
    """It counts as on disk, where it may still be on its way."""

    @property
    def is_gone(self) -> bool:
        return self.batch is None and self.place is None


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Cursor:
    """A reading of (after_seqno, last_seqno] under way: the number of the next item that it looks at. It counts for as
    long as somebody has it, so that a reading which is never begun holds nothing.
    """

    number: int
    after_seqno: int
    last_seqno: int

    def has_ahead(self, item: _Item) -> bool:
        return self.number <= item.number and item.first_seqno <= self.last_seqno and item.last_seqno > self.after_seqno


class WindowOutput(Output):
    """See the module. Any number of threads read it. `after_seqno`: what lies at or below was never put."""

    def __init__(
        self,
        number: int,
        *,
        container: Container | None,
        on_change: Callable[[Output], None],
        cache: Cache,
        after_seqno: int,
    ) -> None:
        super().__init__(number, container=container, on_change=on_change)
        self._cache = cache
        self._start_seqno = self._reached_seqno = after_seqno
        self._items: list[_Item] = []
        self._trimmed_count = 0
        self._unread: deque[_Item] = deque()
        self._cursors: WeakSet[_Cursor] = WeakSet()
        self._memory_bytes = 0
        self._disk_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    @property
    def spilled_bytes(self) -> int:
        return self._disk_bytes

    @property
    def start_seqno(self) -> int:
        """The seqno at or below which nothing is held."""
        return self._start_seqno

    @property
    def reached_seqno(self) -> int:
        """Everything at or below was put."""
        return self._reached_seqno

    def reach(self, seqno: int) -> None:
        with self._condition:
            self._reached_seqno = max(self._reached_seqno, seqno)
        self._wake()

    def reading(self, after_seqno: int, last_seqno: int, timeout: float = 0.0) -> Generator[Tagged, None, None] | None:
        """Items that have seqnos of (after_seqno, last_seqno], or None where that is not held as a whole.

        With a timeout, what was not put yet may still come: the reading begins, and waits for at most so many seconds
        at a time. Errors, of the iterator: `TimeoutError`; what the engine failed with; `RoutingCancelled` where what
        it has ahead was trimmed. Whoever does not exhaust it closes it.
        """
        with self._condition:
            if not self._holds or after_seqno < self._start_seqno:
                return None
            if self._reached_seqno < last_seqno and (timeout <= 0 or self._is_over):
                return None
            first = bisect_right(self._items, after_seqno, key=_last_seqno)
            cursor = _Cursor(self._trimmed_count + first, after_seqno, last_seqno)
            if any(item.is_gone for item in self._items[first:] if cursor.has_ahead(item)):
                return None
            self._cursors.add(cursor)
        return self._read(cursor, timeout)

    def trim(self, seqno: int) -> None:
        """Let go of every item whose seqnos are at or below `seqno`."""
        with self._condition:
            count = bisect_right(self._items, seqno, key=_last_seqno)
            for item in self._items[:count]:
                self._let_go(item)
            del self._items[:count]
            self._trimmed_count += count
            self._start_seqno = max(self._start_seqno, seqno)
            self._condition.notify_all()
        self._on_change(self)

    def evict(self, number: int) -> None:
        """See `Evictable`. What a reading has ahead goes to the disk; where that is spent, the reading ends."""
        with self._condition:
            index = number - self._trimmed_count
            if index < 0 or index >= len(self._items):
                return
            item = self._items[index]
            is_ahead = any(cursor.has_ahead(item) for cursor in self._cursors)
            if is_ahead and item.place is None and self._container is not None:
                with suppress(SpillFull):
                    item.place = self._written(self._container, item.batch)
            item.batch = None

    def _keep(self, piece: Piece, is_full: bool) -> None:  # noqa: ARG002  # any item can be spilled
        tagged = piece.tagged
        with self._condition:
            if not self._holds:
                return
            item = _Item(
                number=self._trimmed_count + len(self._items),
                first_seqno=tagged.first_seqno,
                last_seqno=tagged.last_seqno,
                rows=tagged.batch.num_rows,
                nbytes=piece.nbytes,
                batch=tagged.batch,
            )
            self._items.append(item)
            self._unread.append(item)
            self._memory_bytes += item.nbytes
            self._condition.notify_all()

    def _spill(self, container: Container, nbytes: int) -> Callable[[], None] | None:
        chosen: list[_Item] = []
        before = self._disk_bytes
        while self._unread and self._disk_bytes < before + nbytes:
            item = self._unread.popleft()
            if not item.was_read and item.batch is not None:
                item.is_spilled = True
                self._memory_bytes -= item.nbytes
                self._disk_bytes += item.nbytes
                chosen.append(item)
        return partial(self._write, container, chosen) if chosen else None

    def _write(self, container: Container, chosen: Sequence[_Item]) -> None:
        for item in chosen:
            batch = item.batch
            if batch is None:
                continue
            place = self._written(container, batch)
            with self._condition:
                # Unless it was let go of meanwhile.
                if item.batch is not None:
                    item.batch, item.place, place = None, place, None
            if place is not None:
                container.free(place)

    def _written(self, container: Container, batch: pa.RecordBatch) -> Place | None:
        try:
            return container.write(batch)
        except SpillFull:
            with self._condition:
                is_freed = self._free_read(container)
            if not is_freed:
                raise
            return container.write(batch)

    def _free_read(self, container: Container) -> bool:
        """Let go of what is on disk and was read; True if that was anything."""
        found = False
        for item in self._items:
            if item.was_read and item.place is not None and not any(one.has_ahead(item) for one in self._cursors):
                container.free(item.place)
                item.place = None
                found = True
        return found

    def _read(self, cursor: _Cursor, timeout: float) -> Generator[Tagged, None, None]:
        try:
            while True:
                with self._condition:
                    item = self._next(cursor)
                    if item is not None:
                        batch, place = item.batch, item.place
                        self._mark_read(item)
                    elif self._is_complete(cursor):
                        return
                if item is None:
                    self._wait_for(partial(self._is_changed, cursor), timeout)
                    continue
                self._on_change(self)
                if batch is None and place is not None and self._container is not None:
                    batch = self._container.read(place)
                if batch is None:
                    raise _trimmed(self.number)
                yield Tagged(batch, item.first_seqno, item.last_seqno)
        finally:
            with self._condition:
                self._cursors.discard(cursor)

    def _next(self, cursor: _Cursor) -> _Item | None:
        self._check_error()
        index = cursor.number - self._trimmed_count
        if not self._holds or (index < 0 and self._start_seqno > cursor.after_seqno):
            raise _trimmed(self.number)
        # Items that came since may still lie before the range.
        index = bisect_right(self._items, cursor.after_seqno, lo=max(0, index), key=_last_seqno)
        cursor.number = self._trimmed_count + index
        if index >= len(self._items) or self._items[index].first_seqno > cursor.last_seqno:
            return None
        cursor.number += 1
        return self._items[index]

    def _is_complete(self, cursor: _Cursor) -> bool:
        if self._reached_seqno >= cursor.last_seqno:
            return True
        if self._is_over:
            raise RoutingCancelled(
                f"the router ended before seqno {cursor.last_seqno}", op="route", channel=self.number
            )
        return False

    def _is_changed(self, cursor: _Cursor) -> bool:
        if cursor.number < self._trimmed_count or self._reached_seqno >= cursor.last_seqno:
            return True
        has_items = cursor.number - self._trimmed_count < len(self._items)
        return (has_items and self._items[-1].last_seqno > cursor.after_seqno) or self._is_over or not self._holds

    def _mark_read(self, item: _Item) -> None:
        if not item.was_read:
            item.was_read = True
            self._count_out(item)
        # What is on its way to the disk stays there.
        if item.batch is not None and not item.is_spilled:
            self._cache.touch(self, item.number, item.nbytes)

    def _let_go(self, item: _Item) -> None:
        self._cache.forget(self, item.number)
        if not item.was_read:
            self._count_out(item)
        if item.place is not None and self._container is not None:
            self._container.free(item.place)
        item.batch = item.place = None

    def _count_out(self, item: _Item) -> None:
        if item.is_spilled:
            self._disk_bytes -= item.nbytes
        else:
            self._memory_bytes -= item.nbytes

    def _discard(self) -> int:
        rows = sum(item.rows for item in self._items if not item.was_read)
        for item in self._items:
            self._let_go(item)
        self._trimmed_count += len(self._items)
        self._items.clear()
        self._unread.clear()
        return rows


def _last_seqno(item: _Item) -> int:
    return item.last_seqno


def _trimmed(number: int) -> RoutingCancelled:
    return RoutingCancelled("rows were let go of while they were read", op="route", channel=number)


def window_engine(*, routes: Routes, budget: Budget, directory: Path, after_seqno: int) -> Engine[WindowOutput]:
    """An engine whose outputs keep what they were given until it is trimmed."""
    make = partial(WindowOutput, cache=budget.cache, after_seqno=after_seqno)
    return Engine(make, routes=routes, budget=budget, directory=directory)
