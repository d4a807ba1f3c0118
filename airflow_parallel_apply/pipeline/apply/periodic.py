"""Work that goes on beside other work, at a pace of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_logger = logging.getLogger(__name__)


@contextmanager
def every(seconds: float, step: Callable[[], None], *, name: str) -> Iterator[None]:
    """Around other work: call `step` once in so many seconds, from a thread of its own, which ends with that work.

    A step that fails is logged, and the next one is tried at its time: nobody would miss a thread that is gone.
    """
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            try:
                step()
            except Exception:
                _logger.exception("%s failed, trying again in %s s", name, seconds)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
