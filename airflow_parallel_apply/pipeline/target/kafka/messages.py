"""Rows of the log as messages, encoded by columns: what Spark's workers stage, and lanes send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.columns.rows import RowTyping, UnfitColumns, row_typing, typed_rows
from airflow_parallel_apply.pipeline.encode.columns.types import ColumnTyping
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.open import open_confluent, open_messages
from airflow_parallel_apply.pipeline.encode.protocol import MessageEncoder
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.partition.key import canonical
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress, MessageFormat
from airflow_parallel_apply.pipeline.target.kafka.registry import registered_schema_id

STAGED: Final = pa.schema(
    [
        pa.field("seqno", pa.int64()),
        pa.field("fragno", pa.int64()),
        pa.field("bucket", pa.int32()),
        pa.field("operation", pa.string()),
        pa.field("commit_time", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""One message a row, in (seqno, fragno) order."""

_KEY_CHANGES: Final = (
    " One is of the key, whose messages then have another key than those before, unless it is a date: that is refused, "
    "and takes topics of another prefix, and a pipeline that begins anew."
)
_WRITTEN_AS_THEY_ARE: Final = {KeyKind.TEXT, KeyKind.UUID, KeyKind.EXACT}
_ISO: Final = "%Y-%m-%dT%H:%M:%SZ"
_FORMATS: Final = {MessageFormat.JSON: Format.JSON, MessageFormat.DEBEZIUM: Format.DEBEZIUM}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMessages:
    """Makes the messages of one definition of a table. Make it with `table_messages`."""

    typing: RowTyping
    key_indexes: tuple[int, ...]
    values: MessageEncoder
    keys: MessageEncoder

    def of(self, rows: pa.RecordBatch, commit_times: CommitTimes) -> pa.RecordBatch:
        """`STAGED` rows of log rows, in their order. Errors: `UnfitColumns`."""
        times = commit_times.of(rows.column("seqno"))
        typed = typed_rows(rows, self.typing, times, copied_through=commit_times.copied_through)
        operation = typed.column(len(self.typing.columns))
        key = self.keys_of(typed)
        key = pc.if_else(pc.equal(operation, "truncate"), pa.scalar(None, pa.binary()), key)
        return pa.RecordBatch.from_arrays(
            [
                rows.column("seqno"),
                rows.column("fragno"),
                rows.column("bucket"),
                operation,
                pc.strftime(times, format=_ISO),
                key,
                self.values.messages(typed),
            ],
            schema=STAGED,
        )

    def keys_of(self, typed: pa.RecordBatch) -> pa.BinaryArray:
        """The key of each row's message; null without a key."""
        if not self.key_indexes:
            return pa.nulls(len(typed), pa.binary())
        return self.keys.messages(self._canonical_keys(typed))

    def _canonical_keys(self, typed: pa.RecordBatch) -> pa.RecordBatch:
        """The key's columns, equal for equal keys: 1.0 and 1.00 are one key, and so are -0 and 0."""
        fields = [typed.schema.field(index) for index in self.key_indexes]
        columns = []
        for index in self.key_indexes:
            column = typed.column(index)
            if pa.types.is_floating(column.type):
                column = pc.add(column, pa.scalar(0, column.type))
            elif pa.types.is_string(column.type):
                column = canonical(self.typing.columns[index].column.kind, column)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def table_messages(
    address: KafkaAddress,
    relation: Relation,
    *,
    schema_id: Callable[[str, dict[str, Any]], int],
    typing: RowTyping | None = None,
) -> TableMessages:
    """The messages of a table. `schema_id`: of a registry's subject and a schema. `typing`: of rows that are no
    changes. Errors: `EncodeError` for what the format cannot write; `ConfigurationError`.
    """
    typing = typing or row_typing(relation, address.texts(relation.name))
    values: MessageEncoder
    keys: MessageEncoder
    if address.format is MessageFormat.AVRO:
        topic = address.topic(relation.name)
        key_schema = pa.schema([typing.schema.field(index) for index in relation.key_indexes])
        values = open_confluent(typing.schema, typing.table, schema_id=partial(schema_id, f"{topic}-value"))
        keys = open_confluent(key_schema, f"{typing.table}_key", schema_id=partial(schema_id, f"{topic}-key"))
    else:
        values = open_messages(_FORMATS[address.format], typing, server=address.prefix, database=address.prefix)
        keys = open_messages(Format.JSON, typing)
    return TableMessages(typing=typing, key_indexes=relation.key_indexes, values=values, keys=keys)


def has_other_keys(address: KafkaAddress, older: Relation, newer: Relation) -> bool:
    """True if a row's message has another key under a newer definition than under an older one, or may have."""
    if older.key_names != newer.key_names:
        return True
    pairs = zip(_key_typings(address, older), _key_typings(address, newer), strict=True)
    return any(not _is_written_alike(address, before, after) for before, after in pairs)


def _key_typings(address: KafkaAddress, relation: Relation) -> list[ColumnTyping]:
    typing = row_typing(relation, address.texts(relation.name))
    return [typing.columns[index] for index in relation.key_indexes]


def _is_written_alike(address: KafkaAddress, before: ColumnTyping, after: ColumnTyping) -> bool:
    """True if a value is the same in a key of either. Avro's keys begin with the number of their schema."""
    kinds = {before.column.kind, after.column.kind}
    if before.type == after.type:
        return len(kinds) == 1 or kinds <= _WRITTEN_AS_THEY_ARE
    if address.format is MessageFormat.AVRO:
        return False
    scales = {before.column.value.scale, after.column.value.scale}
    return kinds == {KeyKind.INTEGER} or (kinds == {KeyKind.DECIMAL} and len(scales) == 1)


class Messages:
    """Makes the messages of any rows of a log. Not thread-safe."""

    def __init__(self, address: KafkaAddress, relation: Callable[[int], Relation]) -> None:
        """`relation`: the definition that an id stands for."""
        self._relation = relation
        self._made: dict[int, TableMessages] = {}
        self._address = address

    def by_relation(
        self, batch: pa.RecordBatch, commit_times: CommitTimes
    ) -> Iterator[tuple[Relation, pa.RecordBatch]]:
        """The messages of the rows of each relation. Errors: `TargetError` for values that the types cannot hold."""
        rows = _normal(batch)
        column = rows.column("relation_id")
        for relation_id in pc.unique(column).to_pylist():
            part = rows.filter(pc.equal(column, relation_id))
            relation = self._relation(relation_id)
            if relation_id not in self._made:
                self._made[relation_id] = table_messages(
                    self._address, relation, schema_id=partial(registered_schema_id, self._address.registry)
                )
            yield relation, _fitting(self._made[relation_id], part, commit_times)


def _fitting(messages: TableMessages, rows: pa.RecordBatch, commit_times: CommitTimes) -> pa.RecordBatch:
    try:
        return messages.of(rows, commit_times)
    except UnfitColumns as error:
        keys = {messages.typing.columns[index].column.name for index in messages.key_indexes}
        raise TargetError(
            error.message,
            op="stage",
            table=error.table,
            column=error.column,
            seqno=error.seqno,
            values=error.values,
            hint="Name them in the connection's extra, text_columns=schema.table.column: they keep the source's text."
            + ("" if keys.isdisjoint(error.columns) else _KEY_CHANGES),
        ) from error


def _normal(batch: pa.RecordBatch, names: Sequence[str] = ("values", "unsent", "old_key")) -> pa.RecordBatch:
    """Spark may send wide strings: the log's own type."""
    for name in names:
        if batch.column(name).type != pa.string():
            batch = batch.set_column(batch.schema.get_field_index(name), name, batch.column(name).cast(pa.string()))
    return batch
