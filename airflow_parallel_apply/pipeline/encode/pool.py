"""A pool of workers: pieces of work side by side, their output in order to one consumer, in bounded memory.

::

             ┌─▶ worker 0 ──▶ pieces of work 0 ─┐
    works ───┼─▶ worker 1 ──▶ pieces of work 1 ─┼──▶ take: work after work, piece after piece, in the caller's thread
             └─▶ worker n ──▶ pieces of work n ─┘

Workers are threads. What is encoded by columns is encoded by kernels of Arrow and numpy, which let go of the
interpreter's lock, so threads are side by side without a copy of the rows for another process.

Works are drawn by a thread of their own, which may read what they need while workers are busy with those before. It
waits while `WORKS_AHEAD` for each worker are drawn and not yet taken. A worker whose work has `PIECES_AHEAD` that
nobody takes yet waits as well: so a work behind the first one is side by side with it only as far as its pieces are no
more than these. Give works of a few pieces, rather than one long work to each worker.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from airflow_parallel_apply.pipeline.encode.splitter import check_count
from airflow_parallel_apply.pipeline.errors import EncodeError, RetryableError, Unavailable

PIECES_AHEAD: Final = 4
WORKS_AHEAD: Final = 2

_LOOK_SECONDS: Final = 0.2
"""How often a waiting consumer asks whether it is cancelled."""

Piece = TypeVar("Piece")
Work: TypeAlias = Callable[[], Iterator[Piece]]


class Pool:
    """Runs works on so many threads. `cancelled` is asked by the consumer, several times a second.

    Errors: `ConfigurationError` for a number of threads that is none.
    """

    def __init__(self, *, threads: int, cancelled: Callable[[], bool] = lambda: False) -> None:
        check_count(threads, "threads")
        self._threads = threads
        self._cancelled = cancelled

    @property
    def threads(self) -> int:
        """The number of workers."""
        return self._threads

    def ordered(self, works: Iterable[Work[Piece]], take: Callable[[Piece], None]) -> None:
        """Run all works, and take their pieces in the order of works. Returns when the last piece is taken: a second
        call begins behind it, so two calls have a barrier between them.

        Errors: those of the works, of drawing them and of `take`, one as it is, several as `together` puts them.
        `Unavailable` when cancelled. In either case no worker is left when this raises.
        """
        _Run(iter(works), self._threads, take, self._cancelled).go()


def together(errors: list[BaseException]) -> BaseException:
    """One error that names all of them, in the order in which they came; it can be retried if each can. An interrupt or
    an exit stays what it is.
    """
    for error in errors:
        if len(errors) == 1 or not isinstance(error, Exception):
            return error
    message = f"{len(errors)} workers failed: " + "; ".join(f"{type(error).__name__}: {error}" for error in errors)
    kind = Unavailable if all(isinstance(error, RetryableError) for error in errors) else EncodeError
    found = kind(message, op="encode")
    found.__cause__ = BaseExceptionGroup("workers", errors)
    return found


@dataclass(slots=True)
class _Path(Generic[Piece]):
    """The way of one work's pieces to the consumer."""

    pieces: deque[Piece] = field(default_factory=deque)
    is_done: bool = False


class _Run(Generic[Piece]):
    """One call of a pool. Everything below `_changed` is written under it."""

    def __init__(
        self, works: Iterator[Work[Piece]], threads: int, take: Callable[[Piece], None], cancelled: Callable[[], bool]
    ) -> None:
        self._works = works
        self._threads = threads
        self._take = take
        self._cancelled = cancelled
        self._changed = threading.Condition()
        self._paths: deque[_Path[Piece]] = deque()
        """Those of works that are drawn and not yet taken, in their order."""
        self._waiting: deque[tuple[Work[Piece], _Path[Piece]]] = deque()
        """Works that are drawn and that no worker has begun."""
        self._is_drawn = False
        """All works are drawn."""
        self._stopped = False
        self._errors: list[BaseException] = []

    def go(self) -> None:
        workers = [
            threading.Thread(target=self._draw, name="encoder's works"),
            *(threading.Thread(target=self._work, name=f"encoder {number}") for number in range(self._threads)),
        ]
        for worker in workers:
            worker.start()
        try:
            self._consume()
        except BaseException as error:  # noqa: BLE001  # raised below, with those of the workers
            self._fail(error)
        finally:
            for worker in workers:
                worker.join()
        if self._errors:
            raise together(self._errors)

    def _consume(self) -> None:
        while True:
            with self._changed:
                while not self._is_something_there():
                    self._changed.wait(_LOOK_SECONDS)
                    self._check_cancelled()
                if self._stopped or not self._paths:
                    return
                path = self._paths[0]
                if not path.pieces:
                    self._paths.popleft()
                    self._changed.notify_all()
                    continue
                piece = path.pieces.popleft()
                self._changed.notify_all()
            self._check_cancelled()
            self._take(piece)

    def _is_something_there(self) -> bool:
        if self._stopped:
            return True
        if not self._paths:
            return self._is_drawn
        return bool(self._paths[0].pieces) or self._paths[0].is_done

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise Unavailable("it was cancelled", op="encode")

    def _draw(self) -> None:
        try:
            while self._has_room() and (work := next(self._works, None)) is not None:
                path: _Path[Piece] = _Path()
                with self._changed:
                    self._paths.append(path)
                    self._waiting.append((work, path))
                    self._changed.notify_all()
            with self._changed:
                self._is_drawn = True
                self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # the consumer's thread raises it
            self._fail(error)

    def _has_room(self) -> bool:
        """Wait until another work may be drawn. False when the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._paths) < WORKS_AHEAD * self._threads)
            return not self._stopped

    def _work(self) -> None:
        try:
            while (drawn := self._next()) is not None:
                work, path = drawn
                for piece in work():
                    if not self._put(path, piece):
                        return
                with self._changed:
                    path.is_done = True
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  # the consumer's thread raises it
            self._fail(error)

    def _next(self) -> tuple[Work[Piece], _Path[Piece]] | None:
        """The next work; None when there is none, or the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._waiting or self._is_drawn)
            return None if self._stopped or not self._waiting else self._waiting.popleft()

    def _put(self, path: _Path[Piece], piece: Piece) -> bool:
        """False when the run is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(path.pieces) < PIECES_AHEAD)
            if not self._stopped:
                path.pieces.append(piece)
                self._changed.notify_all()
            return not self._stopped

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._stopped = True
            self._errors.append(error)
            self._changed.notify_all()
