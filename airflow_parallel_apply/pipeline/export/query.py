"""A query's rows in portions, and the protocol of who reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, typed_values
from airflow_parallel_apply.pipeline.encode.columns.types import typings
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.export.options import QueryOptions
from airflow_parallel_apply.pipeline.export.protocol import Portion
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind

_LINE: Final = "line"
_NUMBER: Final = "number"
_ID_BITS: Final = 31


class QueryRows(Protocol):
    """One run of a query, at one moment of its database. Errors: `Unavailable`, `ConfigurationError`."""

    def columns(self) -> tuple[Column, ...]:
        """Names, types, and the meaning of values."""
        ...

    def lines(self) -> Iterator[list[str]]:
        """The values of rows as lines (`model.copy_text`), many at a time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPortion:
    """See `Portion`."""

    relation: Relation
    rows: pa.Table
    commit_times: CommitTimes | None = None
    keys: tuple[str, ...] = ()

    def typing(self, texts: Collection[str]) -> RowTyping:
        columns = typings(self.relation, texts)
        return RowTyping(
            name=(self.relation.schema, self.relation.table),
            columns=columns,
            schema=pa.schema([typing.field for typing in columns]),
        )

    def typed(self, batch: pa.RecordBatch, typing: RowTyping) -> pa.RecordBatch:
        values = typed_values(batch.column(_LINE), batch.column(_NUMBER), typing.columns, typing.table)
        return pa.RecordBatch.from_arrays(values, schema=typing.schema)

    def seqnos(self, batch: pa.RecordBatch) -> tuple[int, int]:  # noqa: ARG002  # rows are no transactions
        return NO_SEQNO, NO_SEQNO


@dataclass(frozen=True, slots=True)
class QueryPortions:
    """Reads a query once for each attempt."""

    open: Callable[[], AbstractContextManager[QueryRows]]
    query: QueryOptions
    window_bytes: int

    def read(self) -> Iterator[Portion]:
        """Portions of about `window_bytes`, in the query's order."""
        with self.open() as rows:
            relation = self._relation(rows.columns())
            held: list[str] = []
            size, number = 0, 0
            for lines in rows.lines():
                held += lines
                size += sum(map(len, lines))
                if size >= self.window_bytes:
                    yield _portion(relation, held, number)
                    number += len(held)
                    held, size = [], 0
            if held:
                yield _portion(relation, held, number)

    def _relation(self, columns: tuple[Column, ...]) -> Relation:
        names = [column.name for column in columns]
        twice = {name for name in names if names.count(name) > 1}
        lacking = set(self.query.key).difference(names)
        if not names or twice or lacking:
            wrong = "has no columns"
            if twice or lacking:
                wrong = f"has two columns {min(twice)}" if twice else f"lacks column {min(lacking)}"
            raise ConfigurationError(
                f"the query's result {wrong}", op="export", hint="Name each column once, and the key's among them."
            )
        schema, table = self.query.table.split(".")
        definition = "\0".join(f"{column.name}\0{column.type_name}" for column in columns)
        return Relation(
            relation_id=xxhash.xxh3_64_intdigest(definition.encode()) % 2**_ID_BITS,
            schema=schema,
            table=table,
            replica_identity=ReplicaIdentity.KEY,
            columns=tuple(replace(one, kind=KeyKind.TEXT, key=one.name in self.query.key) for one in columns),
        )


def _portion(relation: Relation, lines: list[str], first: int) -> QueryPortion:
    rows = pa.table({_LINE: pa.array(lines, pa.string()), _NUMBER: pa.array(np.arange(first, first + len(lines)))})
    return QueryPortion(relation=relation, rows=rows)
