"""A Delta lake as a feed in a hunt: every change once, and the source's rows when it is folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.encode.columns.rows import CHANGE
from airflow_parallel_apply.pipeline.target.delta.place import CONTROL
from tests.hunt.targets.alterations import Alteration
from tests.hunt.targets.delta import HuntedDelta
from tests.hunt.targets.judging import Place, redefined, unequal_tables, unlike_the_log
from tests.support.rig import Rig


class HuntedDeltaFeed(HuntedDelta):
    """Implements `HuntedTarget`."""

    @property
    def url(self) -> str:
        return f"{super().url}?feed=true"

    def differences(self, rig: Rig) -> list[str]:
        return unlike_the_log(rig, self._places()) or unequal_tables(rig, but=redefined(rig))

    def alter(self, rig: Rig, alterations: Sequence[Alteration]) -> str:
        """Rows have the columns of their own definition."""
        return ""

    def follow(self, told: str) -> str:
        return ""

    def _places(self) -> Iterator[Place]:
        for log in self.path.glob("*/*/_delta_log"):
            if log.parent.parent.name != CONTROL:
                yield from places_of(log.parent)


def places_of(table: Path) -> Iterator[Place]:
    """The changes that a table has."""
    found = DeltaTable(str(table)).to_pyarrow_table()
    names = [next(name for name in reversed(found.column_names) if name.lstrip("_") == wanted.lstrip("_"))
             for wanted in (CHANGE.names[1], CHANGE.names[2])]  # fmt: skip
    yield from zip(*(found.column(name).to_pylist() for name in names), strict=True)
