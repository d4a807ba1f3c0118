"""The stretches that a feeding was told: those that it has yet to read, in order, and those that it may hold."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from airflow_parallel_apply.pipeline.store.protocol import Stretch


class ToldStretches:
    """Thread-safe. Iterating takes them one by one, and waits for more until `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Stretch] = deque()
        self._runs: list[Stretch] = []
        """Those that were told, where one follows another joined, in order."""
        self._is_closed = False

    @property
    def after_seqno(self) -> int | None:
        """The seqno behind which the first one begins; None where none was told."""
        return self._runs[0].after_seqno if self._runs else None

    @property
    def last_seqno(self) -> int | None:
        """The last seqno that was told."""
        return self._runs[-1].last_seqno if self._runs else None

    def tell(self, stretch: Stretch) -> None:
        """Add the part of a stretch that lies above all that were told before; nothing goes back."""
        with self._changed:
            told = self.last_seqno
            after = stretch.after_seqno if told is None else max(stretch.after_seqno, told)
            if after >= stretch.last_seqno:
                return
            self._waiting.append(Stretch(after, stretch.last_seqno))
            if after == told:
                self._runs[-1] = Stretch(self._runs[-1].after_seqno, stretch.last_seqno)
            else:
                self._runs.append(Stretch(after, stretch.last_seqno))
            self._changed.notify_all()

    def contain(self, after_seqno: int, last_seqno: int) -> bool:
        """True if every seqno of (after_seqno, last_seqno] was told, and no other lies between."""
        with self._changed:
            return any(run.after_seqno <= after_seqno and last_seqno <= run.last_seqno for run in self._runs)

    def trim(self, seqno: int) -> None:
        """Forget the runs that end at or below a seqno, but for the last one."""
        with self._changed:
            while len(self._runs) > 1 and self._runs[0].last_seqno <= seqno:
                del self._runs[0]

    def __iter__(self) -> Iterator[Stretch]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                stretch = self._waiting.popleft()
            yield stretch

    def close(self) -> None:
        """End the iteration."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
