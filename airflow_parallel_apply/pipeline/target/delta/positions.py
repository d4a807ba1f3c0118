"""The positions of one pipeline: a small Delta table, whose every version is written from the one before it or not at
all.

So this table is where former owners are refused (law 3): a commit is decided here, by a version that holds the claim
and the decision, before it touches another table.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final
from uuid import uuid4

from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.target.delta.place import CONTROL, Lake
from airflow_parallel_apply.pipeline.target.delta.state import SCHEMA, State, from_rows, to_rows
from airflow_parallel_apply.pipeline.target.delta.tables import (
    Outrun,
    conditionally,
    from_newest,
    open_table,
    sync,
    table_errors,
)

_CONFIGURATION: Final = {"delta.checkpointInterval": "20", "delta.logRetentionDuration": "interval 1 days"}
_KEPT: Final = timedelta(hours=24)
"""Former versions stay readable for so long."""


class PositionsTable:
    """See above. One thread's."""

    def __init__(self, lake: Lake, pipeline: str) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._uri = lake.uri(CONTROL, pipeline, "positions")

    def read(self) -> State | None:
        """The newest version; None where the pipeline has no positions. Errors: `Unavailable`."""
        found = self._read()
        return None if found is None else found[1]

    def create(self) -> bool:
        """Make the table; False where it is there. Errors: `Unavailable`."""
        if open_table(self._lake, self._uri) is not None:
            return False
        try:
            with table_errors("prepare"):
                write_deltalake(
                    self._uri,
                    to_rows(State(life=uuid4().hex)),
                    mode="error",
                    configuration=_CONFIGURATION,
                    storage_options=dict(self._lake.options) or None,
                    commit_properties=conditionally(),
                )
        except Outrun:
            return False
        sync(self._lake, self._uri, 0)
        return True

    def update(self, change: Callable[[State], State]) -> State:
        """Replace the newest version by what `change` makes of it; nothing is written where that is the same. `change`
        is called again when another version came in between, and its errors end it. Errors: `Unavailable`,
        `ConfigurationError` where there is none.
        """
        return from_newest(lambda: self._update(change), what="the positions")

    def sweep(self) -> None:
        """Remove the data of versions that nobody reads any more. Errors: `Unavailable`."""
        table = open_table(self._lake, self._uri)
        if table is not None:
            with table_errors("own"):
                hours = int(_KEPT.total_seconds() // 3600)
                table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)

    def _update(self, change: Callable[[State], State]) -> State:
        found = self._read()
        if found is None:
            raise ConfigurationError("the lake has no positions of the pipeline", hint="Clear the task open.")
        table, before = found
        after = change(before)
        if after == before:
            return before
        with table_errors("move positions"):
            write_deltalake(table, to_rows(after), mode="overwrite", commit_properties=conditionally())
            sync(self._lake, self._uri, table.version())
        return after

    def _read(self) -> tuple[DeltaTable, State] | None:
        table = open_table(self._lake, self._uri)
        if table is None:
            return None
        # Not through delta-rs's storage, which is Python: Arrow's threads let go of its buffers after the last row, and
        # one that does so while the interpreter ends aborts the process.
        files = fs.SubTreeFileSystem(self._lake.path(self._uri), self._lake.files)
        with table_errors("read positions"):
            return table, from_rows(table.to_pyarrow_table(filesystem=files).cast(SCHEMA))
