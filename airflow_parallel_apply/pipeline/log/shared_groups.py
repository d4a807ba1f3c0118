"""Row groups of which several streams want a part each, decoded once.

With many channels a row group holds the buckets of a few of them. Their streams come to it at about the same time, so a
decoded group is kept until each of its rows was taken once, or until others need the memory. Whoever comes later, or
again, has it decoded anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_parallel_apply.pipeline.log.row_groups import Wanted


@dataclass(slots=True, eq=False)
class _Group:
    rows: Future[pa.Table] = field(default_factory=Future)
    size_bytes: int = 0
    taken_rows: int = 0


class SharedGroups:
    """Thread-safe. `limit_bytes`: of the groups that are kept, the one that was decoded last aside."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, _Group] = OrderedDict()
        self._kept_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Memory of the groups that are kept."""
        return self._kept_bytes

    def take(self, key: Hashable, wanted: Wanted, decode: Callable[[], pa.Table]) -> pa.Table:
        """The wanted rows of a group, which whoever comes first decodes; others wait for that. Errors: those of
        `decode`.
        """
        with self._lock:
            group = self._kept.get(key)
            is_first = group is None
            if group is None:
                group = self._kept[key] = _Group()
        if is_first:
            self._decode(key, group, decode)
        rows = group.rows.result()
        found = rows.filter(wanted.mask(rows))
        with self._lock:
            group.taken_rows += found.num_rows
            if group.taken_rows >= rows.num_rows:
                self._drop(key, group)
        return found

    def _decode(self, key: Hashable, group: _Group, decode: Callable[[], pa.Table]) -> None:
        try:
            rows = decode()
        except BaseException as error:
            with self._lock:
                self._drop(key, group)
            group.rows.set_exception(error)
            raise
        with self._lock:
            group.size_bytes = rows.nbytes
            self._kept_bytes += group.size_bytes
            for other in [one for one in self._kept if one != key]:
                if self._kept_bytes <= self._limit_bytes:
                    break
                if self._kept[other].rows.done():
                    self._drop(other, self._kept[other])
        group.rows.set_result(rows)

    def _drop(self, key: Hashable, group: _Group) -> None:
        if self._kept.get(key) is group:
            del self._kept[key]
            self._kept_bytes -= group.size_bytes
