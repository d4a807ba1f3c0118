"""A Delta lake in a hunt: its tables are the source's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_parallel_apply.pipeline.target.delta.place import lake_of
from tests.hunt.targets.alterations import Alteration
from tests.hunt.targets.directory import KeptDirectory
from tests.hunt.targets.judging import unequal_tables
from tests.support.rig import Rig

_TYPES: Final = {"text": pa.string(), "integer": pa.int32(), "bigint": pa.int64()}
"""The types of the columns that the grammar adds."""

_ARROW: Final = {str(one): one for one in _TYPES.values()}
_LACKING: Final = re.compile(r"(?P<schema>\w+)\.(?P<table>\w+) lacks column (?P<column>\w+) \((?P<type>\w+)\)")


class HuntedDelta:
    """Implements `HuntedTarget`."""

    def __init__(self, directory: Path) -> None:
        self._directory = KeptDirectory(directory / "lake")
        self._dropped: dict[tuple[str, str], pa.DataType] = {}
        """The types of columns that were dropped by hand, which may come again."""

    @property
    def path(self) -> Path:
        """Its root."""
        return self._directory.path

    @property
    def url(self) -> str:
        return f"delta://{self.path}"

    def fresh(self) -> None:
        self._directory.fresh()

    def crash(self) -> None:
        """A disk does not crash."""

    def keep(self) -> None:
        self._directory.keep()

    def restore(self) -> None:
        self._directory.restore()

    def differences(self, rig: Rig) -> list[str]:
        return unequal_tables(rig)

    def run(self, statements: Sequence[str]) -> str:
        return ""

    def alter(self, rig: Rig, alterations: Sequence[Alteration]) -> str:
        done = []
        for one in alterations:
            uri = lake_of(self.url).table_uri(one.schema, one.table)
            if not DeltaTable.is_deltatable(uri):
                continue
            before = DeltaTable(uri).to_pyarrow_table()
            if one.action == "drop" and one.column in before.column_names:
                self._dropped[uri, one.column] = before.schema.field(one.column).type
            type_ = _TYPES.get(one.type_name) or self._dropped.get((uri, one.column))
            after = _altered(before, one, type_)
            if after is not None:
                write_deltalake(uri, after, mode="overwrite", schema_mode="overwrite")
                done.append(str(one))
        return "; ".join(done)

    def follow(self, told: str) -> str:
        """A column that a table lacks, of those that inherit from an altered one, too: null in older rows."""
        found = _LACKING.search(told)
        if found is None or found["type"] not in _ARROW:
            return ""
        uri = lake_of(self.url).table_uri(found["schema"], found["table"])
        before = DeltaTable(uri).to_pyarrow_table()
        after = before.append_column(found["column"], pa.nulls(len(before), _ARROW[found["type"]]))
        write_deltalake(uri, after, mode="overwrite", schema_mode="overwrite")
        return f"added {found['column']} to {found['table']}"

    def begin_anew(self) -> None:
        self.fresh()

    def close(self) -> None: ...


def _altered(table: pa.Table, one: Alteration, type_: pa.DataType | None) -> pa.Table | None:
    """None where it is so already. `type_`: that of a column to add, where it is known."""
    names = table.column_names
    match one.action:
        case "add" if one.column not in names and type_ is not None:
            values = pa.array([int(one.default)] * len(table)) if one.default else pa.nulls(len(table))
            return table.append_column(one.column, values.cast(type_))
        case "drop" if one.column in names:
            return table.drop_columns([one.column])
        case "rename" if one.column in names and one.new_name not in names:
            return table.rename_columns([one.new_name if name == one.column else name for name in names])
    return None
