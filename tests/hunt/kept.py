"""Tables of the target that a pipeline has no business with: those of others, and those that are left out."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import TablePatterns
from tests.hunt.oracle import Rows, contents


class Kept:
    """The rows that such tables have. One that is not there any more was dropped or renamed by somebody else."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, Rows]] = {}

    def note(self, dsn: str, path: str) -> None:
        """Have this table, of this database, stay as it is."""
        rows = contents(dsn, path)
        if rows is not None:
            self._rows[path] = rows

    def differences(self, dsn: str, tables: TablePatterns) -> list[str]:
        """A line for each table that somebody has written to, though nobody follows it."""
        unfollowed = (path for path in self._rows if not tables.matches(*path.split(".")))
        found = ((path, self._rows[path], contents(dsn, path)) for path in unfollowed)
        return [
            f"{path}, which nobody follows, had {before[1].total()} rows and has {now[1].total()}"
            for path, before, now in found
            if now is not None and now[0] == before[0] and now != before
        ]
