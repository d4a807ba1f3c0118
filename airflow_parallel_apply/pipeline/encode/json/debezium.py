"""Changes in Debezium's envelope, as a JSON converter without schemas writes it.

`op` is c, u, d or t, or r for a row of the initial copy; `after` the new row, `before` of a delete the row as far as it
was sent, else null. A value that was not sent is `__debezium_unavailable_value`. Values are as `values` has them:
decimals as strings, bytes in Base64, times in ISO 8601. `transaction.id` is the seqno.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.rows import READ, RowTyping
from airflow_parallel_apply.pipeline.encode.formats import UNAVAILABLE
from airflow_parallel_apply.pipeline.encode.json.rows import members
from airflow_parallel_apply.pipeline.encode.json.values import NULL, json_values

_OPERATIONS: Final = {"insert": "c", "update": "u", "delete": "d", "truncate": "t", READ: "r"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumRows:
    """Makes the envelopes of rows of one table. `server`, `database`: whose changes they are."""

    typing: RowTyping
    server: str
    database: str

    def __call__(self, batch: pa.RecordBatch) -> pa.StringArray:
        """The envelope of each row."""
        width = len(self.typing.columns)
        operation, seqno, fragno, commit_time, unsent, _ = batch.columns[width:]
        values = [json_values(column) for column in batch.columns[:width]]
        if unsent.null_count < len(unsent):
            values = self._with_unsent(values, unsent)
        row = members(batch.schema.names[:width], values, batch.num_rows)
        is_before, is_after = pc.equal(operation, "delete"), pc.is_in(operation, pa.array(["insert", "update", READ]))
        millis = pc.divide(commit_time.cast(pa.int64()), 1000).cast(pa.string())
        coded = pa.array([json.dumps(code) for code in _OPERATIONS.values()]).take(
            pc.index_in(operation, pa.array(list(_OPERATIONS)))
        )
        number = seqno.cast(pa.string())
        return members(
            ("before", "after", "source", "op", "ts_ms", "transaction"),
            (
                pc.if_else(is_before, row, NULL),
                pc.if_else(is_after, row, NULL),
                self._source(millis, number),
                coded,
                millis,
                self._transaction(number, fragno),
            ),
            batch.num_rows,
        )

    def _source(self, millis: pa.StringArray, seqno: pa.StringArray) -> pa.StringArray:
        names = {
            "connector": "parallel_apply",
            "name": self.server,
            "db": self.database,
            "schema": self.typing.name[0],
            "table": self.typing.name[1],
        }
        fixed = [pa.scalar(json.dumps(value, ensure_ascii=False)) for value in names.values()]
        return members((*names, "ts_ms", "txId"), (*fixed, millis, seqno), len(millis))

    def _transaction(self, seqno: pa.StringArray, fragno: pa.Array) -> pa.StringArray:
        order = pc.add(fragno, 1).cast(pa.string())
        return members(("id", "total_order"), (pc.binary_join_element_wise('"', seqno, '"', ""), order), len(seqno))

    def _with_unsent(self, values: list[pa.StringArray], unsent: pa.StringArray) -> list[pa.StringArray]:
        coded = unsent.dictionary_encode()
        names = [set(json.loads(text)) for text in coded.dictionary.to_pylist()]
        found = []
        for typing, texts in zip(self.typing.columns, values, strict=True):
            marks = pa.array([typing.column.name in one for one in names], pa.bool_()).take(coded.indices)
            found.append(pc.if_else(pc.fill_null(marks, False), json.dumps(UNAVAILABLE), texts))
        return found
