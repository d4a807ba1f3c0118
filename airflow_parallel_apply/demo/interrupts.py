"""Ctrl-C, SIGTERM and a closed terminal mean the same to the demo: clean up once, undisturbed, then end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """One of the signals came."""


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Turn the first signal into `Interrupted` in the main thread, so that every `finally` runs."""
    before = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore a second Ctrl-C from here on: it must not end a clean-up half way, which is bounded."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    ignore_signals()
    raise Interrupted(signal.Signals(number).name)
