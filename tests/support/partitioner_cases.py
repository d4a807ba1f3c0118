"""Routings that every partitioner's contract is run with, and random rows for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import line
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.partition.key import buckets, canonical, join, keyless_buckets
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.protocol import Placement
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.partition.shard_list import Default, ShardHash, ShardList

LISTED = ShardList(channels=(("7", 2), ("a", 1), ("b", 1), ("ü", 0)), critical=("global",))
_BY_NAME = (("*", "name"),)
_COLOCATED = (("public.keyed", "public.other"),)
EVERY = "split_part(name || '/' || place, '/', 1)"

ROUTINGS = {
    "key": Routing(channels=7),
    "key, one channel": Routing(channels=1),
    "key, 64 channels": Routing(channels=64),
    "round robin": Routing(channels=5, partitioner="round_robin"),
    "shard by a column": Routing(channels=4, partitioner="shard", shard_by=(("*", "name"),)),
    "shard by a remainder": Routing(channels=4, partitioner="shard", shard_by=(("*", "number % 3"),)),
    "shard by the first letters": Routing(channels=4, partitioner="shard", shard_by=(("*", "left(name, 2)"),)),
    "shard by a part": Routing(channels=4, partitioner="shard", shard_by=(("*", "split_part(name, '/', 2)"),)),
    "shard by several columns": Routing(channels=4, partitioner="shard", shard_by=(("*", "name || '-' || amount"),)),
    "shard by nested functions": Routing(channels=4, partitioner="shard", shard_by=(("*", EVERY),)),
    "shard by a numeric": Routing(channels=4, partitioner="shard", shard_by=(("*", "amount"),)),
    "shard by a float": Routing(channels=4, partitioner="shard", shard_by=(("*", "weight"),)),
    "shard by blank padded text": Routing(channels=4, partitioner="shard", shard_by=(("*", "place"),)),
    "shard by a time": Routing(channels=4, partitioner="shard", shard_by=(("*", "made"),)),
    "shards of some tables": Routing(channels=4, partitioner="shard", shard_by=(("public.keyed", "name"),)),
    "a list": Routing(channels=3, partitioner="shard_list", shard_by=(("*", "name"),), shards=LISTED),
    "a list with a default": Routing(
        channels=3,
        partitioner="shard_list",
        shard_by=(("*", "name"),),
        shards=ShardList(channels=(("a", 0),), default=2),
    ),
    "a list of all shards": Routing(
        channels=3,
        partitioner="shard_list",
        shard_by=(("*", "name"),),
        shards=ShardList(channels=(("a", 0), ("it's", 1)), default=Default.CRITICAL),
    ),
    "a list and numbers": Routing(
        channels=3,
        partitioner="shard_list",
        shard_by=(("*", "number"),),
        shards=ShardList(channels=(("1", 0),), hash=ShardHash.NUMBER),
    ),
    "key, colocated tables": Routing(channels=7, colocation=_COLOCATED),
    "shard, colocated tables": Routing(
        channels=7, partitioner="shard", shard_by=(("*", "name"),), colocation=_COLOCATED
    ),
    "round robin, colocated tables": Routing(channels=7, partitioner="round_robin", colocation=_COLOCATED),
    "installed": Routing(channels=3, partitioner="by_letter", release="by-letter 1.0"),
}

TYPES = {
    "name": "text",
    "number": "bigint",
    "amount": "numeric(12,4)",
    "weight": "double precision",
    "place": "character(8)",
    "made": "timestamp(3) with time zone",
}
KINDS = (KeyKind.TEXT, KeyKind.INTEGER, KeyKind.DECIMAL, KeyKind.FLOAT, KeyKind.BLANK_PADDED, KeyKind.TIME)
_KIND_OF = dict(zip(TYPES, KINDS, strict=True))


def _columns(names: Iterable[str], *, keyed: bool) -> tuple[Column, ...]:
    return tuple(Column(name=name, type_name=TYPES[name], kind=_KIND_OF[name], key=keyed) for name in names)


def relation(number: int, table: str, *, keyed: bool) -> Relation:
    return Relation(
        relation_id=number,
        schema="public",
        table=table,
        replica_identity=ReplicaIdentity.KEY,
        columns=_columns(TYPES, keyed=keyed),
    )


# Of `other` the columns come in another order, and one of its definitions has lost them.
OTHER = Relation(
    relation_id=3, schema="public", table="other", replica_identity=ReplicaIdentity.KEY,
    columns=_columns(reversed(TYPES), keyed=True),
)  # fmt: skip
BARE = Relation(
    relation_id=4, schema="public", table="bare", replica_identity=ReplicaIdentity.KEY,
    columns=_columns(["number"], keyed=True),
)  # fmt: skip
RELATIONS = {1: relation(1, "keyed", keyed=True), 2: relation(2, "keyless", keyed=False), 3: OTHER, 4: BARE}

_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
_ESCAPED = st.sampled_from(["\\N", "\\", "\\\\t", "\t", "a\tb", "\n/\r", "\\\t", "x\\n"])
_NAMES = st.one_of(
    st.sampled_from(["", "a", "b", "ü", "global", "it's", "x/y", "/", "7", "\\'", "ß/İ"]), _ESCAPED, _TEXT
)
_AMOUNTS = st.sampled_from(["1", "1.0", "1.00", "-1.50", "100", "0", "0.000", "NaN", "Infinity", "-0.0010"])
_WEIGHTS = st.sampled_from(["0", "-0", "1", "1.5", "1e+20", "NaN", "-Infinity"])
_TIMES = st.sampled_from(["2026-01-02 03:04:05+00", "infinity", "0044-03-15 00:00:00+00 BC"])
_NUMBERS = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1)).map(str)
VALUES = st.tuples(_NAMES, _NUMBERS, _AMOUNTS, _WEIGHTS, st.sampled_from(["x", "x       ", "", "é  "]), _TIMES)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = []
    for fragno in range(draw(st.integers(1, 25))):
        number = draw(st.sampled_from(sorted(RELATIONS)))
        values: list[str | None] = list(draw(VALUES))
        if number == 2 and draw(st.booleans()):
            values[draw(st.integers(0, 5))] = None
        rows.append(row(draw(st.integers(0, 30)), fragno, number, values))
    return pa.RecordBatch.from_pylist(rows, schema=ROWS)


def row(seqno: int, fragno: int, number: int, values: list[str | None]) -> dict[str, Any]:
    key = None
    if number != 2:
        texts = [canonical(kind, pa.array([text])) for kind, text in zip(KINDS, values, strict=True)]
        key = join(texts)[0].as_py() if number != 4 else values[1]
    bucket = (
        keyless_buckets(pa.array([seqno]).to_numpy(), pa.array([fragno]).to_numpy())
        if key is None
        else buckets(RELATIONS[number].name, pa.array([key]))
    )
    shown = list(reversed(values)) if number == 3 else [values[1]] if number == 4 else values
    return {
        "seqno": seqno, "fragno": fragno, "relation_id": number, "operation": "I" if number == 2 else "D",
        "bucket": int(bucket[0]), "key": key, "key_order": 0, "previous_seqno": -1, "next_seqno": 2**63 - 1,
        "values": line(shown), "unsent": None, "old_key": None,
    }  # fmt: skip


def place(routing: Routing, rows: pa.RecordBatch) -> Placement:
    partitioner = open_partitioner(routing)
    return partitioner.place(rows.select(list(partitioner.columns)), RELATIONS)
