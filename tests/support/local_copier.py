"""Copying without Spark, for tests of what lies around it: the same parts, in threads of this process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.copy.open import load_part
from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder
from airflow_parallel_apply.pipeline.errors import OwnershipLost


@dataclass(frozen=True, kw_only=True)
class LocalCopier:
    """Some parts at a time. Cancelled, it takes no further ones."""

    source: Endpoint
    target: Endpoint
    threads: int = 3
    cancelled: Event = field(default_factory=Event)

    def begin(self) -> None:
        """Is ready."""

    def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
        with ThreadPoolExecutor(max_workers=self.threads) as pool:
            for done in [pool.submit(self._part, order, part) for part in parts]:
                done.result()

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        """Holds nothing."""

    def _part(self, order: CopyOrder, part: int) -> None:
        if self.cancelled.is_set():
            raise OwnershipLost("the copy was cancelled", op="copy")
        load_part(self.source, self.target, order, part)
