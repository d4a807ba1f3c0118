"""Keys that tables had when a message was sent: what the message says of them, and what is proven of that."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.sighting import Sighting
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import Shape
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import WireRelation

_BY_INDEX: Final = "i"


def is_partial(
    wire: WireRelation,
    numbers: Sequence[int | None],
    generated: Sequence[int],
    indexes: Sequence[Sequence[int]],
    shape: Shape,
    seen: Sighting | None,
    known: Relation | None,
) -> bool:
    """True if the message may lack computed columns of its key: a part of a key does not tell rows apart. `generated`:
    the table's columns of now that may have been such ones. `indexes`: the columns of the unique indexes that it has
    now. If the former ones do not show it, an index that is younger than the message may have its columns.
    """
    sent = {number for number, column in zip(numbers, wire.columns, strict=True) if column.key}
    gone = {*seen.generated}.difference(shape.columns) if seen is not None else set()
    unsent = {*generated, *gone}.difference(numbers)
    keys = [{*index} for index in indexes]
    if not sent or not unsent:
        return False
    if sent not in keys and any(sent == key - unsent for key in keys):
        return True
    if seen is not None and seen.key is not None and sent == {*seen.key[1]}:
        return False
    if known is not None and _has_key(known, wire, sent):
        return False
    # What was seen is no primary key if the table had none, or one with computed columns; and an index that tells rows
    # apart is not seen at all. Without a key in the log, it may have been one with computed columns.
    is_by_other = wire.replica_identity == _BY_INDEX and (known is None or bool(known.key_indexes))
    return sent not in keys or (seen is not None and not is_by_other)


def _has_key(known: Relation, wire: WireRelation, sent: Set[int | None]) -> bool:
    """True if the log's last definition has the key that was sent. Of a table that is gone only names are known."""
    key = [column for column in known.columns if column.key]
    if None in sent:
        return {column.name for column in key} == {column.name for column in wire.columns if column.key}
    return {column.number for column in key} == sent


def had_key_before(shape: Shape, seen: Sighting | None, known: Relation | None) -> bool:
    """True if the index that tells rows apart now did so before the message, too."""
    if seen is not None:
        return seen.key == shape.key
    if known is None or shape.key is None:
        return False
    names = {shape.columns[number].name for number in shape.key[1]}
    return names == {*known.key_names}
