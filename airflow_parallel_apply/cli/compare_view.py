"""A comparison for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from airflow_parallel_apply.pipeline.compare.compare import Comparison, TableComparison

_ANY_WIDTH: Final = 10_000


class UnderWay:
    """A comparison's progress in one line, redrawn at each change. Threads may share it."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._lock = Lock()
        self._reading: list[str] = []
        self._compared = 0
        self._tables = 0

    def begun(self, name: str, of: int) -> None:
        """A table is being read, of so many."""
        with self._lock:
            self._reading.append(name)
            self._tables = of
            self._tell()

    def compared(self, table: TableComparison) -> None:
        """One is done."""
        with self._lock:
            self._reading.remove(table.name)
            self._compared += 1
            self._tell()

    def _tell(self) -> None:
        now = f", now {', '.join(self._reading)}" if self._reading else ""
        self._show(f"compared {self._compared:,} of {self._tables:,} tables{now}")


def comparison_view(comparison: Comparison) -> RenderableType:
    """One line a table; below them the first keys that differ."""
    # As text: what looks like markup in a name or a key is none.
    return Group(_Tables(comparison), *(Text(line) for one in comparison.tables for line in _complaints(one)))


class _Tables:
    """A terminal that is too narrow for the checksums shows none: a name or a checksum that is cut tells nothing."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = _table(self._comparison, has_checksums=True)
        is_wide = console.measure(whole, options=options.update_width(_ANY_WIDTH)).maximum <= options.max_width
        yield whole if is_wide else _table(self._comparison, has_checksums=False)


def _table(comparison: Comparison, *, has_checksums: bool) -> Table:
    table = Table(box=None)
    checksums = ("checksum at source", "checksum at target") if has_checksums else ()
    for name in ("table", "rows at source", "rows at target", *checksums, ""):
        table.add_column(name, justify="right" if name.startswith("rows") else "left", overflow="fold")
    for one in comparison.tables:
        table.add_row(
            Text(one.name),
            _count(one.source_rows),
            _count(one.target_rows),
            *((one.source_checksum or "", one.target_checksum or "") if has_checksums else ()),
            Text("equal", style="green") if one.equal else Text("differs", style="bold red"),
        )
    return table


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """The same facts."""
    return {
        "equal": comparison.equal,
        "tables": [
            {
                "table": one.name,
                "equal": one.equal,
                "source_rows": one.source_rows,
                "target_rows": one.target_rows,
                "source_checksum": one.source_checksum,
                "target_checksum": one.target_checksum,
                "problem": one.problem,
                "differences": [str(difference) for difference in one.differences],
            }
            for one in comparison.tables
        ],
    }


def _complaints(one: TableComparison) -> list[str]:
    lines = [f"{one.name}: {difference}" for difference in one.differences]
    return [f"{one.name}: {one.problem}", *lines] if one.problem else lines


def _count(rows: int | None) -> str:
    return "" if rows is None else f"{rows:,}"
