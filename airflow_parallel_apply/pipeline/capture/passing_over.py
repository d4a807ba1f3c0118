"""Tables that were copied anew: their log goes on from the copies, and passes over what they hold already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.log.protocol import PassedOver, WriterFenced
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.source.protocol import SourceChanged
from airflow_parallel_apply.pipeline.target.protocol import Recopied

_TRIES: Final = 5


def pass_over(
    log_url: str,
    copied: Sequence[tuple[Relation, Recopied]],
    *,
    parts: Mapping[int, Sequence[tuple[int, str, str]]],
    register: Callable[[str | None], str],
    require: Callable[[Sequence[Relation]], None],
    after_seqno: int,
) -> None:
    """Publish one manifest with the tables as they were then, and none of their changes below. Captures go on
    meanwhile, which need no owner.

    `parts`: what holds a table's rows now, and sent them under a name of its own before: oid, schema and name, by the
    table's oid. `register` makes the source's registration out of the log's; `require` raises for definitions that the
    log has and that are in the way. Errors: `SourceChanged` where a table was redefined since; `LogError`.
    """
    tries = 0
    while True:
        writer = open_writer(log_url)
        captured_offset = writer.state().captured_offset
        require(writer.latest_relations())
        writer.register(register(writer.state().registration), 0)
        for relation, copy in copied:
            latest = writer.latest_relation(relation.schema, relation.table)
            if captured_offset > copy.offset and latest is not None and not latest.is_as(relation):
                raise SourceChanged("a table was redefined since", op="recopy", table=relation.name)
            # Changes behind the copy follow this definition, not the one before, which may have been refused.
            writer.define(relation)
        passed_over = [
            PassedOver(schema=schema, table=table, below_offset=copy.offset, recopy_id=copy.recopy_id, oid=oid)
            for relation, copy in copied
            for oid, schema, table in (
                (relation.oid, copy.schema, copy.table),
                *(parts.get(relation.oid, ()) if relation.oid is not None else ()),
            )
        ]
        writer.pass_over(passed_over, after_seqno=after_seqno)
        try:
            writer.commit(captured_offset)
            return
        except WriterFenced:
            tries += 1
            if tries == _TRIES:
                raise
