"""Measures what the interpreter's lock leaves to other threads while one works."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic, sleep
from typing import Final

_HASHED: Final = bytes(2**20)
_HASHED_TIMES: Final = 64
_NAP_SECONDS: Final = 0.0005


def turns_beside(work: Callable[[], object]) -> float:
    """How often a second another thread wakes while this one works, over a second or more."""
    ended = threading.Event()
    turns = 0

    def wake() -> None:
        nonlocal turns
        while not ended.is_set():
            sleep(_NAP_SECONDS)
            turns += 1

    thread = threading.Thread(target=wake)
    thread.start()
    began = monotonic()
    while monotonic() - began < 1:
        work()
    spent = monotonic() - began
    ended.set()
    thread.join()
    return turns / spent


def hash_once() -> None:
    """Work that needs no lock of Python's."""
    hashlib.sha256(_HASHED)


def loop_once() -> None:
    """Work that holds the lock."""
    for _ in range(20_000):
        pass


def ideal_gain() -> float:
    """By how much two threads are faster than one at work that needs no lock."""
    content = memoryview(_HASHED * _HASHED_TIMES)
    halves = content[: len(content) // 2], content[len(content) // 2 :]
    began = monotonic()
    for half in halves:
        hashlib.sha256(half)
    alone = monotonic() - began
    return alone / _in_threads(*(partial(hashlib.sha256, half) for half in halves))


def _in_threads(*works: Callable[[], object]) -> float:
    """Seconds until all of them have ended, each in a thread."""
    began = monotonic()
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return monotonic() - began
