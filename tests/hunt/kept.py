"""Tables of the target that a pipeline has no business with: those of others, and those that are left out."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import TablePatterns
from tests.hunt.oracle import Contents, contents


class Kept:
    """The rows that such tables have, whatever these are called by now. One that is followed again is let go."""

    def __init__(self) -> None:
        self._noted: dict[int, Contents] = {}

    def note(self, dsn: str, path: str, tables: TablePatterns) -> None:
        """Have this table, of this database, stay as it is; nothing, if the pipeline follows it."""
        found = contents(dsn, path)
        if found is not None and not tables.matches(found.schema, found.name):
            self._noted[found.oid] = found

    def look_again(self, dsn: str, tables: TablePatterns) -> None:
        """The database is another state of itself: what it has of these tables is what stays."""
        paths = [f"{one.schema}.{one.name}" for one in self._noted.values()]
        self._noted = {}
        for path in paths:
            self.note(dsn, path, tables)

    def follow(self, dsn: str, tables: TablePatterns) -> None:
        """Let go of those that the pipeline follows from now on."""
        for oid, before in tuple(self._noted.items()):
            now = contents(dsn, oid) or before
            if tables.matches(now.schema, now.name):
                del self._noted[oid]

    def differences(self, dsn: str, tables: TablePatterns, *, may_go: bool) -> list[str]:
        """A line for each table that somebody has written to, though nobody follows it. `may_go`: somebody dropped
        tables.
        """
        self.follow(dsn, tables)
        found = []
        for oid, before in self._noted.items():
            now = contents(dsn, oid)
            told = f"{before.schema}.{before.name}, which nobody follows,"
            if now is None and not may_go:
                found.append(f"{told} had {before.rows.total()} rows and is gone")
            elif now is not None and now.columns == before.columns and now.rows != before.rows:
                found.append(f"{told} had {before.rows.total()} rows and has {now.rows.total()}")
        return found
