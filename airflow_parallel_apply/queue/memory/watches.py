"""Wakes those who wait for queues to change: by name, at once, in the thread that changed them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

Notify = Callable[[], None]
"""Wakes the one who waits; called by any thread, must not block and takes no lock of the queue."""


class Watch:
    """One who waits, and what was heard for them."""

    __slots__ = ("_heard", "notify")

    def __init__(self, notify: Notify) -> None:
        self.notify = notify
        self._heard: set[str] = set()

    def tell(self, queue: str) -> None:
        """Written by any thread; single operations of a set, which need no lock."""
        self._heard.add(queue)

    def heard(self) -> set[str]:
        """The queues that changed since the last call."""
        heard = set()
        while self._heard:
            heard.add(self._heard.pop())
        return heard


class Watches:
    """All who wait. Its lock is held for look-ups alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_queue: dict[str, set[Watch]] = {}
        self._of_all: set[Watch] = set()

    @contextmanager
    def watch(self, queues: Iterable[str] | None, notify: Notify) -> Iterator[Watch]:
        """Hear of changes of these queues (None: of any) from now on."""
        watch, names = Watch(notify), set(queues or ())
        with self._lock:
            if queues is None:
                self._of_all.add(watch)
            for name in names:
                self._by_queue.setdefault(name, set()).add(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._of_all.discard(watch)
                for name in names:
                    self._by_queue[name].discard(watch)
                    if not self._by_queue[name]:
                        del self._by_queue[name]

    def announce(self, queues: Iterable[str]) -> None:
        """Wake those who wait for one of these queues, or for any."""
        announced: set[Watch] = set()
        with self._lock:
            for queue in queues:
                for watch in self._by_queue.get(queue, ()):
                    watch.tell(queue)
                    announced.add(watch)
            announced |= self._of_all
        for watch in announced:
            watch.notify()
