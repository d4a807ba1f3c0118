"""Tables that were copied anew: their log goes on from the copies, and passes over what they hold already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.log.protocol import PassedOver, WriterFenced
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.protocol import SourceChanged
from airflow_parallel_apply.pipeline.target.protocol import Recopied

_TRIES: Final = 5


def copies_of_parts(
    copied: Sequence[tuple[Relation, Recopied]], parts: Mapping[int, Sequence[tuple[int, str, str]]]
) -> tuple[tuple[int, Recopied], ...]:
    """Each partition, as its oid, with its part of a copy: it may have sent rows of the table under a name of its own.
    `parts`: oid, schema and name, by the table's oid.

    Log, ledger and target all know a copy under each of these names, because each keeps a name's last one. A name that
    one of them took from a former copy, and another one not, would be a copy that was lost.
    """
    return tuple(
        (oid, replace(copy, schema=schema, table=table, rows=0))
        for relation, copy in copied
        if relation.oid is not None
        for oid, schema, table in parts.get(relation.oid, ())
    )


def copies_of_lost(
    lost: Sequence[PassedOver],
    copied: Sequence[Relation],
    *,
    undone: Sequence[PassedOver],
    names: Mapping[int, str],
    parts: Mapping[int, Sequence[tuple[int, str, str]]],
    recopy_id: str,
    offset: Offset,
) -> tuple[tuple[int | None, Recopied], ...]:
    """Former copies that were lost and that nobody can make again under their names: their tables were renamed, and are
    part of this copy, or the source sends them no more. This copy stands for them from now on.

    `lost`: see `lost_copies`. `names`, `parts`: all tables that the source sends, by oid, and their partitions.

    What was sent of a table that is gone, up to this copy's `offset`, has no rows to meet at the target. A name that is
    another table's now keeps the former copy's offset, since the other one's changes are wanted.

    `undone`: see `TablesThen`. Nothing is passed over under these names from now on.
    """
    of_this = {relation.oid for relation in copied}
    followed = {*names, *(oid for found in parts.values() for oid, _, _ in found)}
    in_use = {*names.values()}
    below = {
        one: one.below_offset if f"{one.schema}.{one.table}" in in_use else offset
        for one in lost
        if one.oid is not None and (one.oid in of_this or one.oid not in followed)
    } | dict.fromkeys(undone, 0)
    return tuple(
        (one.oid, Recopied(schema=one.schema, table=one.table, recopy_id=recopy_id, offset=offset, rows=0))
        for one, offset in below.items()
    )


def pass_over(
    log_url: str,
    copied: Sequence[tuple[Relation, Recopied]],
    *,
    lost: Sequence[tuple[int | None, Recopied]],
    parts: Sequence[tuple[int | None, Recopied]],
    register: Callable[[str | None, Sequence[Relation]], str],
    require: Callable[[Sequence[Relation]], None],
    mark: Callable[[], Offset],
    require_alone: Callable[[], object],
    after_seqno: int,
) -> None:
    """Publish one manifest with the tables as they were then, and none of their changes below. Captures go on
    meanwhile, which need no owner.

    `lost`, `parts`: see `copies_of_lost` and `copies_of_parts`. `register` makes the source's registration out of the
    log's and of its last definitions; `require` raises for definitions that the log has and that are in the way. `mark`
    has the source name the copy at a place behind it, see `PassedOver`. `require_alone` is asked just before the
    commit: it raises where another pipeline has come to read the log since. Errors: `SourceChanged` where a table was
    redefined since; `LogError`.
    """
    tries = 0
    while True:
        writer = open_writer(log_url)
        captured_offset = writer.state().captured_offset
        known = writer.latest_relations()
        require(known)
        writer.register(register(writer.state().registration, known), 0)
        for relation, copy in copied:
            latest = writer.latest_relation(relation.schema, relation.table)
            if captured_offset > copy.offset and latest is not None and not latest.is_as(relation):
                raise SourceChanged(
                    "a table was redefined since", op="recopy", table=relation.name, hint="Run it again."
                )
            # Changes behind the copy follow this definition, not the one before, which may have been refused.
            writer.define(relation)
        marked_offset = mark()
        passed_over = [
            *(_passed_over(oid, copy, marked_offset if copy.offset else 0) for oid, copy in lost),
            *(_passed_over(oid, copy) for oid, copy in parts),
            *(_passed_over(one.oid, copy, marked_offset) for one, copy in copied),
        ]
        writer.pass_over(passed_over, after_seqno=after_seqno)
        require_alone()
        try:
            writer.commit(captured_offset)
            return
        except WriterFenced:
            tries += 1
            if tries == _TRIES:
                raise


def _passed_over(oid: int | None, copy: Recopied, marked_offset: Offset = 0) -> PassedOver:
    return PassedOver(
        schema=copy.schema,
        table=copy.table,
        below_offset=copy.offset,
        recopy_id=copy.recopy_id,
        oid=oid,
        marked_offset=marked_offset,
    )
