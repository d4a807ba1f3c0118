"""Replay: log rows one by one, in source order, inside the unit's transaction. The last resort, and always right where
the target's constraints are checked as the source's are: row by row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError, ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.pipeline.target.mariadb.holding import hold_table
from airflow_parallel_apply.pipeline.target.mariadb.mapping import Form
from airflow_parallel_apply.pipeline.target.mariadb.multiset import missing_row
from airflow_parallel_apply.pipeline.target.mariadb.quoting import listed, quoted
from airflow_parallel_apply.pipeline.target.mariadb.same_row import same_row
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.table_load import forms_of, way_on
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetTable
from airflow_parallel_apply.pipeline.target.relations import Relations

_COLUMNS: Final = ("seqno", "relation_id", "operation", "values", "unsent", "old_key")


class Replayer:
    """Replays the rows of one unit. Not thread-safe, used in one transaction."""

    def __init__(self, session: Session, relations: Relations) -> None:
        self._session = session
        self._relations = relations
        self._tables: dict[int, _Writer] = {}

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Rows in (seqno, fragno) order. Errors: `TargetError` that names table, seqno and key; the driver's own where
        the server cannot be reached.
        """
        for seqno, relation_id, letter, values, unsent, old_key in _rows(batches):
            operation = Operation(letter)
            if operation is Operation.KEY_LEFT:
                continue
            if not operation.is_row:
                raise LogError(f"operation {letter} among the rows to replay", seqno=seqno)
            if relation_id not in self._tables:
                table = hold_table(self._session, self._relations, relation_id)
                self._tables[relation_id] = _Writer(self._session, table)
            self._tables[relation_id].write(
                operation, seqno, values_of(values), unsent or "", None if old_key is None else values_of(old_key)
            )


class _Writer:
    """Writes single rows of one table."""

    def __init__(self, session: Session, table: TargetTable) -> None:
        self._session = session
        self._table = table
        self._forms = forms_of(table)

    @property
    def relation(self) -> Relation:
        """The definition of the rows."""
        return self._table.relation

    def write(
        self,
        operation: Operation,
        seqno: int,
        values: Sequence[str | None],
        unsent: str,
        old_key: Sequence[str | None] | None,
    ) -> None:
        places = self.relation.key_indexes or tuple(range(len(self.relation.columns)))
        key = old_key if operation is Operation.KEY_ARRIVED and old_key is not None else [values[at] for at in places]
        try:
            count = self._run(operation, values, unsent, places, key)
        except ParallelApplyError as error:
            error.op = "replay"
            error.message += self._told(key)
            error.at(seqno=seqno)
            raise
        if count == 1:
            return
        if not self.relation.key_indexes:
            raise missing_row(self._table).at(seqno=seqno)
        raise TargetError(
            f"{count} rows found to change{self._told(key)}",
            table=self.relation.name,
            seqno=seqno,
            hint="Did somebody else write there, or did the copies differ at the start? `parallel-apply compare` "
            "shows it.",
        )

    def _run(
        self,
        operation: Operation,
        values: Sequence[str | None],
        unsent: str,
        places: Sequence[int],
        key: Sequence[str | None],
    ) -> int:
        name, columns = self._table.quoted, self.relation.columns
        found = [self._value(at, text) for at, text in zip(places, key, strict=True)]
        sent = [at for at in range(len(columns)) if unsent[at : at + 1] != "1"]
        given = [self._value(at, values[at]) for at in sent] if operation is not Operation.DELETE else []
        names = [columns[at].name for at in sent]
        match operation:
            case Operation.INSERT:
                marks = ", ".join(["%s"] * len(names))
                return self._exactly(f"INSERT INTO {name} ({listed(names)}) VALUES ({marks})", given)
            case Operation.DELETE:
                return self._exactly(f"DELETE FROM {name} WHERE {self._same()} LIMIT 1", found)
            case _:
                made = ", ".join(f"{quoted(one)} = %s" for one in names)
                return self._exactly(f"UPDATE {name} SET {made} WHERE {self._same()} LIMIT 1", [*given, *found])

    def _same(self) -> str:
        if not self.relation.key_indexes:
            return same_row(self._table)
        return " AND ".join(f"{quoted(name)} = %s" for name in self._table.key_names)

    def _exactly(self, statement: str, values: Sequence[object]) -> int:
        return self._session.exactly(statement, values, table=self.relation.name)

    def _value(self, index: int, text: str | None) -> object:
        """The driver's value of a text. Errors: `TargetError`."""
        form: Form = self._forms[index]
        if text is None and form.takes_null:
            return None
        if text is None or (form.pattern and not re.fullmatch(form.pattern, text)):
            raise TargetError(
                "the target does not take a value as it is: it has no such value"
                if text is not None
                else "the target takes NULL for another value",
                table=self.relation.name,
                column=self.relation.columns[index].name,
                values=text,
                hint=way_on(self.relation.columns[index]),
            )
        return form.value(text)

    def _told(self, key: Sequence[str | None]) -> str:
        names = self._table.key_names
        return f" (row {', '.join(f'{name}={value}' for name, value in zip(names, key, strict=True))})" if names else ""


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
