r"""One relation's part of what an attempt loads: its net changes go into a staging table.

The log's lines are those that LOAD DATA reads by itself: tabs between values, `\N`, the same escapes. An operation
goes before each, and the bitmap of what was not sent behind. What the server reads from a client it converts as well as
it can, warns, and goes on, whatever its mode; so a warning refuses the unit, and names the row.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from airflow_parallel_apply.pipeline.apply.net_changes import DELETE, NetChanges
from airflow_parallel_apply.pipeline.apply.relation_load import RelationLoad
from airflow_parallel_apply.pipeline.errors import START_ANEW, ConfigurationError, TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.copy_text import NULL, SEPARATOR, lists, values_of
from airflow_parallel_apply.pipeline.target.mariadb.diagnosis import code_of, place_in, wording
from airflow_parallel_apply.pipeline.target.mariadb.fit import describe_table
from airflow_parallel_apply.pipeline.target.mariadb.mapping import SEVERAL_TEXTS, Form, Refused, form_of
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE
from airflow_parallel_apply.pipeline.target.mariadb.quoting import quoted
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import OPERATION, UNSENT, create_staging
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetTable

_FLUSH_BYTES: Final = 4 * 2**20
"""Bytes of one relation's text that are sent at once."""

_TAKES_ANY: Final = (
    "a text column takes any value as the source's text; one of a key has to be a varchar, and an index takes 768 "
    "characters of all its columns together"
)
_NOT_ALLOWED: Final = (1148, 3948, 4166)
"""The server takes no files from clients."""


def forms_of(table: TargetTable) -> list[Form]:
    """The form of each column, in the relation's order. Errors: `TargetError`."""
    found = []
    for column in table.relation.columns:
        try:
            found.append(form_of(column, table.columns[column.name]))
        except Refused as error:
            raise TargetError(
                f"the column {error}",
                table=table.relation.name,
                column=column.name,
                hint=f"Make it {error.wanted}: `parallel-apply check` has the ALTER TABLE." if error.wanted else None,
            ) from None
    return found


def way_on(column: Column | None) -> str:
    """The hint where the target does not take a value of a column, or of one that nobody knows, as it is."""
    if column is not None and column.key and column.kind in SEVERAL_TEXTS:
        return (
            "A key's column that had it would be a text, and equal values of this type have several. Change it at the "
            f"source, or exclude the table. {START_ANEW}"
        )
    return (
        f"Give the target's column a type that has it: {_TAKES_ANY}; or let it take NULL, where it is that. "
        "Changing it at the source does not help: the log has this value already."
    )


class TableLoad(RelationLoad):
    """See `RelationLoad`: a staging table."""

    def __init__(self, session: Session, relation: Relation, name: str) -> None:
        super().__init__(relation, name)
        self._session = session
        self._buffered_bytes = 0
        self._forms: list[Form] | None = None
        self._command = ""
        self._changes: list[NetChanges] = []

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes

    def flush(self) -> None:
        """Send what is buffered as one LOAD DATA. Errors: `TargetError` that names table, column and key; the driver's
        own.
        """
        if not self._changes:
            return
        with _readable([_text(changes) for changes in self._changes]) as path:
            try:
                loaded = self._session.execute(self._command, [path])
            except pymysql.MySQLError as error:
                if code_of(error) in _NOT_ALLOWED:
                    raise ConfigurationError(
                        "the target takes no data from clients (LOAD DATA LOCAL)",
                        hint="Set local_infile = ON at the server: SET GLOBAL local_infile = 1.",
                    ) from error
                raise
        if loaded.warning_count:
            raise self._refused(self._session.warnings())
        wanted = sum(len(changes.values) for changes in self._changes)
        if loaded.rowcount != wanted:
            raise TargetError(f"{loaded.rowcount} rows of {wanted} were staged", table=self._relation.name)
        self._changes.clear()
        self._buffered_bytes = 0

    def _keep(self, changes: NetChanges) -> None:
        if self._forms is None:
            self._begin()
        self._require_like(changes)
        self._changes.append(changes)
        self._buffered_bytes += changes.values.nbytes
        self._count(changes)
        if self._buffered_bytes >= _FLUSH_BYTES:
            self.flush()

    def _begin(self) -> None:
        table = describe_table(self._session, self._relation)
        self._forms = forms_of(table)
        self._command = _command(self.name, table, self._forms)
        self._session.execute(create_staging(self.name, table))

    def _require_like(self, changes: NetChanges) -> None:
        """Require texts to be of values that the target has. Errors: `TargetError`."""
        forms = [(index, form) for index, form in enumerate(self._forms or ()) if form.pattern or not form.takes_null]
        if not forms:
            return
        values = lists(changes.values)
        for index, form in forms:
            texts = pc.list_element(values, index)
            if form.pattern:
                self._require(pc.match_substring_regex(texts, f"^{form.pattern}$"), changes, index, texts)
            if not form.takes_null and texts.null_count:
                # Of a deletion only the key is told.
                self._require(pc.or_(texts.is_valid(), pa.array(changes.operations == DELETE)), changes, index, texts)

    def _require(self, is_like: pa.BooleanArray, changes: NetChanges, index: int, texts: pa.StringArray) -> None:
        if pc.all(is_like, min_count=0).as_py():
            return
        place = pc.index(is_like, False).as_py()
        column, value = self._relation.columns[index].name, texts[place].as_py()
        message = "the target has no such value" if value is not None else "the target takes NULL for another value"
        raise self._at(changes, place, message, column=column, value=value)

    def _refused(self, warnings: list[str]) -> TargetError:
        """The error for the first row that the server warned of."""
        found = sorted((place_in(text)[1] or 0, text) for text in warnings)
        row, text = next((one for one in found if one[0]), found[0])
        message, value = wording(text)
        column = place_in(text)[0]
        message = re.sub(r" at row \d+$", "", message)
        for changes in self._changes:
            if 0 < row <= len(changes.values):
                return self._at(changes, row - 1, message, column=column, value=value)
            row -= len(changes.values)
        return TargetError(f"the target does not take a value as it is: {message}", table=self._relation.name)

    def _at(
        self, changes: NetChanges, place: int, message: str, *, column: str | None, value: str | None
    ) -> TargetError:
        row = values_of(changes.values[place].as_py())
        key = ", ".join(f"{self._relation.columns[index].name}={row[index]}" for index in self._relation.key_indexes)
        return TargetError(
            f"the target does not take a value as it is: {message}{f' (row {key})' if key else ''}",
            table=self._relation.name,
            column=column,
            seqno=int(changes.seqnos[place]),
            values=value,
            hint=way_on(next((one for one in self._relation.columns if one.name == column), None)),
        )


def _command(staging: str, table: TargetTable, forms: list[Form]) -> str:
    """The LOAD DATA that reads what `_text` makes, from a path."""
    into, made = [quoted(OPERATION)], []
    for index, (column, form) in enumerate(zip(table.relation.columns, forms, strict=True)):
        variable = f"@v{index}"
        into.append(variable if form.loading else quoted(column.name))
        if form.loading:
            made.append(f"{quoted(column.name)} = {form.loading.format(variable)}")
    into.append(quoted(UNSENT))
    setting = f" SET {', '.join(made)}" if made else ""
    return (
        f"LOAD DATA LOCAL INFILE %s INTO TABLE {quoted(DATABASE, staging)} CHARACTER SET utf8mb4"
        r" FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n'"
        f" ({', '.join(into)}){setting}"
    )


def _text(changes: NetChanges) -> memoryview:
    """One line for each net change: operation, the values in order, the bitmap or NULL."""
    operations = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(1), len(changes.values), [None, pa.py_buffer(changes.operations)]
    ).cast(pa.binary())
    bitmaps = changes.unsent if changes.unsent is not None else pa.nulls(len(changes.values), pa.string())
    parts = [operations.view(pa.string()), SEPARATOR, changes.values, SEPARATOR, pc.fill_null(bitmaps, NULL)]
    text = pc.binary_join_element_wise(*parts, "\n", "")
    bounds = memoryview(text.buffers()[1]).cast("i")
    return memoryview(text.buffers()[2])[bounds[text.offset] : bounds[text.offset + len(text)]]


@contextmanager
def _readable(parts: list[memoryview]) -> Iterator[str]:
    """A path from which the driver reads these bytes: of memory where the system has such files, else of a disk."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("parallel_apply"), "wb") as file:
            file.writelines(parts)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(parts)
        file.flush()
        yield file.name
