"""The memory pool in which Arrow keeps the rows of a router's process.

jemalloc, since a router holds rows up to a limit, lets go of them in another order than they came, and should then be
no larger than its budget (`Budget` says by how much it grows). Arrow's own choice, mimalloc, holds back more, and what
it holds slows down those who do not wait; the system's grew to six times the budget. Where Arrow was built without
jemalloc, it says so once and takes its own choice.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

VARIABLE: Final = "ARROW_DEFAULT_MEMORY_POOL"
POOL: Final = "jemalloc"


def choose_memory_pool(environment: MutableMapping[str, str]) -> None:
    """Choose for the process of this environment; what a user has chosen stays. Arrow looks when it is first imported,
    so for a process that runs already this comes before that.
    """
    environment.setdefault(VARIABLE, POOL)
