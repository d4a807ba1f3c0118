"""`shard` and `shard_list`: a row's shard is an expression over its columns; transactions stay whole in its channel.

A shard's channel is that of its hash or, with `shard_list`, the one that the list gives it. A row without a shard (no
expression for its table, NULL, the empty text) makes its transaction critical; so does a second shard beside the
first. Both are Tungsten's rules, whose shards are schemas and whose unknown ones are always critical.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash

from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT, Relation
from airflow_parallel_apply.pipeline.model.copy_text import lists
from airflow_parallel_apply.pipeline.partition.channel import channel_of
from airflow_parallel_apply.pipeline.partition.evaluate import in_arrow, in_sql, text_sql, unusable
from airflow_parallel_apply.pipeline.partition.expression import Expression, parse
from airflow_parallel_apply.pipeline.partition.key import SEED
from airflow_parallel_apply.pipeline.partition.protocol import CRITICAL, UNKNOWN, Numbers, Placement
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.partition.shard_list import Default, ShardHash, ShardList

_INTEGER: Final = r"^-?[0-9]{1,18}$"


class ByShard:
    """See `Partitioner`. Without a list, every shard goes by its hash."""

    is_whole: Final = True
    columns: Final = ("relation_id", "operation", "values")

    def __init__(self, routing: Routing) -> None:
        self._channels = routing.channels
        self._expressions = tuple((pattern, parse(text)) for pattern, text in routing.shard_by)
        self._list = routing.shards or ShardList()
        self._listed = dict(self._list.channels)

    def refusal(self, relation: Relation) -> str | None:
        expression = self._expression(relation)
        found = None if expression is None else unusable(expression, relation)
        if found is None or not found.endswith("outside of its key"):
            return found
        return (
            f"{found}, so that a delete would not tell its shard: "
            "take it into the primary key, or into a unique index that is the REPLICA IDENTITY"
        )

    def place(self, rows: pa.RecordBatch, relations: Mapping[int, Relation]) -> Placement:
        channels = np.full(rows.num_rows, UNKNOWN, dtype=np.int64)
        shards = np.zeros(rows.num_rows, dtype=np.int64)
        ids = rows.column("relation_id").to_numpy()
        is_row = np.isin(rows.column("operation").cast(pa.string()).to_numpy(zero_copy_only=False), list("IUDKX"))
        for relation_id in np.unique(ids[is_row]).tolist():
            relation = relations[relation_id]
            expression = self._usable(relation)
            if expression is None:
                continue
            places = np.flatnonzero(is_row & (ids == relation_id))
            width = len(relation.columns)
            texts = lists(rows.column("values").take(pa.array(places))).flatten()

            def column(index: int, texts: pa.StringArray = texts, width: int = width) -> pa.StringArray:
                return texts.take(pa.array(np.arange(index, len(texts), width)))

            channels[places], shards[places] = self._of_texts(in_arrow(expression, relation, column))
        return Placement(channels, shards)

    def condition(self, channel: int, relations: Collection[Relation]) -> str:
        by_sql: dict[str, list[int]] = {}
        for relation in relations:
            expression = self._usable(relation)
            if expression is not None:
                by_sql.setdefault(in_sql(expression, relation), []).append(relation.relation_id)
        if not by_sql:
            return "false"
        cases = " ".join(
            f"WHEN relation_id IN ({', '.join(map(str, sorted(ids)))}) THEN {sql}" for sql, ids in by_sql.items()
        )
        return " OR ".join(f"({one})" for one in self._conditions(channel, f"CASE {cases} END")) or "false"

    def _expression(self, relation: Relation) -> Expression | None:
        return next((found for pattern, found in self._expressions if fnmatchcase(relation.name, pattern)), None)

    def _usable(self, relation: Relation) -> Expression | None:
        """Also asked of definitions that a table had or got while it was followed."""
        expression = self._expression(relation)
        return expression if expression is not None and unusable(expression, relation) is None else None

    def _of_texts(self, texts: pa.StringArray) -> tuple[Numbers, Numbers]:
        """Channels and shard numbers of shards; there are fewer shards than rows."""
        encoded = texts.dictionary_encode()
        found = [self._of_text(shard) for shard in encoded.dictionary.to_pylist()]
        channels = np.array([*(channel for channel, _ in found), UNKNOWN], dtype=np.int64)
        shards = np.array([*(number for _, number in found), 0], dtype=np.int64)
        codes = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
        return channels[codes], shards[codes]

    def _of_text(self, shard: str) -> tuple[int, int]:
        if not shard:
            return UNKNOWN, 0
        number = _signed(xxhash.xxh64_intdigest(shard.encode(), SEED))
        if shard in self._list.critical:
            return CRITICAL, number
        if shard in self._listed:
            return self._listed[shard], number
        default = self._list.default
        if default is Default.CRITICAL:
            return CRITICAL, number
        if isinstance(default, int):
            return default, number
        if self._list.hash is ShardHash.NUMBER:
            return (int(shard) % self._channels if _is_integer(shard) else UNKNOWN), number
        return int(channel_of(np.array([number % BUCKET_COUNT]), self._channels)[0]), number

    def _conditions(self, channel: int, shard: str) -> Iterator[str]:
        """Conditions of which exactly one holds for a row of the channel."""
        mine = [name for name, found in self._listed.items() if found == channel]
        if mine:
            yield f"{shard} IN ({_texts(mine)})"
        default = self._list.default
        if default is Default.CRITICAL or (isinstance(default, int) and default != channel):
            return
        others = f"{shard} NOT IN ({_texts(['', *self._listed, *self._list.critical])})"
        if isinstance(default, int):
            yield others
        elif self._list.hash is ShardHash.NUMBER:
            number = f"CASE WHEN rlike({shard}, {text_sql(_INTEGER)}) THEN try_cast({shard} AS bigint) END"
            yield f"{others} AND pmod({number}, {self._channels}L) = {channel}"
        else:
            bucket = f"pmod(xxhash64({shard}), {BUCKET_COUNT}L)"
            yield f"{others} AND ({bucket} * {self._channels}) div {BUCKET_COUNT} = {channel}"


def _texts(shards: Collection[str]) -> str:
    return ", ".join(text_sql(shard) for shard in shards)


def _is_integer(shard: str) -> bool:
    digits = shard.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
