"""Keeps the garbage collector from walking a catalog's descriptions again and again while they are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ALLOCATIONS: Final = 100_000
"""Between two collections of the youngest generation. The interpreter's 700 cost a tenth of a run over 5,000 tables."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect seldom until the block ends. Also a decorator. Descriptions of thousands of tables are objects by the
    million that live as long as the block; what is let go meanwhile goes by its count of references.
    """
    youngest, *older = gc.get_threshold()
    gc.set_threshold(max(youngest, _ALLOCATIONS) if youngest else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)
