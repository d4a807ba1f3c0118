"""The memory and the disk that all engines of a process share.

*Memory* is one pool. As long as some is free, any output may take it; so one slow output has all that the others leave.
Once it is used up, room is made by the output that holds most: so what is held becomes even, and those who hold little
are never pushed to the disk by one who hoards.

*Disk* is given by dynamic thresholds, as in the shared memory of network switches (Choudhury and Hahne, 1998): an
output may hold `ALPHA` times what is free. One alone gets eight ninths of the budget, n of them about 1/n each, and
whoever comes next still finds something: an output whose disk is spent ends its engine, and should not end others'.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, Protocol

ALPHA: Final = 8


class SharedBytes:
    """A number of bytes, how many of them are used, and among how many outputs. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"a budget of {limit_bytes} bytes")
        self.limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._used_bytes = 0
        self._outputs = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def even_bytes(self) -> int:
        """An output's part, were it the same for all."""
        return self.limit_bytes // max(1, self._outputs)

    @property
    def free_bytes(self) -> int:
        """Below zero where more is used than there should be."""
        return self.limit_bytes - self._used_bytes

    def share(self, outputs: int) -> None:
        """Share with so many outputs more, or with a negative number less."""
        with self._lock:
            self._outputs += outputs

    def change(self, difference_bytes: int) -> None:
        """Count what was taken, or with a negative number given back."""
        with self._lock:
            self._used_bytes += difference_bytes

    def take(self, size_bytes: int, *, held_bytes: int) -> bool:
        """Take so much more for an output that holds `held_bytes`; False where that is above its threshold."""
        with self._lock:
            used = self._used_bytes + size_bytes
            if held_bytes + size_bytes > ALPHA * (self.limit_bytes - used):
                return False
            self._used_bytes = used
            return True


class Evictable(Protocol):
    """The owner of rows that may go: they were read once, and are kept in case they are asked for again."""

    def evict(self, number: int) -> None:
        """Let go of this item's memory."""
        ...


class Cache:
    """All evictable items of a process, least recently read first. Thread-safe; calls owners without its lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: OrderedDict[tuple[Evictable, int], int] = OrderedDict()
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def touch(self, owner: Evictable, number: int, nbytes: int) -> None:
        """Keep an item that was just read, as the last one to go."""
        with self._lock:
            self._held_bytes += nbytes - self._items.pop((owner, number), 0)
            self._items[owner, number] = nbytes

    def forget(self, owner: Evictable, number: int) -> None:
        """Its owner lets go of an item; nothing where it is not kept."""
        with self._lock:
            self._held_bytes -= self._items.pop((owner, number), 0)

    def shrink(self, limit_bytes: int) -> None:
        """Evict items until all of them are within the limit."""
        while self._held_bytes > max(0, limit_bytes):
            with self._lock:
                if not self._items:
                    return
                (owner, number), nbytes = self._items.popitem(last=False)
                self._held_bytes -= nbytes
            owner.evict(number)


class Budget:
    """The budget of a process: one object for all of its engines.

    `memory_bytes`: by which the process may grow. Half is for rows that wait or are kept; the rest is for what the
    allocator holds back, and for a batch of each source under way. What consumers have taken is theirs. Measured with
    the pool that routers choose, 64 MB and 2 GB of noise: with half the process grew by 54 to 59 MB, with six tenths by
    60 to 63, with two thirds by 66.

    `disk_bytes`: for spilled rows. With 0 nothing is spilled, and an engine stops as soon as one of its outputs is
    blocked. That is bounded as well, but consumers must then not wait for one another.
    """

    def __init__(self, *, memory_bytes: int, disk_bytes: int) -> None:
        self.memory = SharedBytes(memory_bytes // 2)
        self.disk = SharedBytes(disk_bytes)
        self.cache = Cache()

    @property
    def spills(self) -> bool:
        """False where there is no disk to spill to."""
        return self.disk.limit_bytes > 0

    def make_room(self) -> None:
        """Evict kept rows as far as waiting ones need their memory."""
        self.cache.shrink(self.memory.free_bytes)
