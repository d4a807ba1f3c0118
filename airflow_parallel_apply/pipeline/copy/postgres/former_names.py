"""Tables of a copy that the target still has under the names that they had at the source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import Relation, Renaming
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import renaming_statements
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import find_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import is_anothers
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.versions import Versions


def left_renamed(
    log_url: str, target: Session, relations: Sequence[Relation], positions: Iterable[Position]
) -> tuple[str, ...]:
    """The statements that rename at the target the tables that it lacks, and has by the name that the last definition
    has that it applied, but for those that have another one's rows by now. A run would do it, or say it, but none may
    go on before the copy. Errors: the pipeline's.
    """
    applied_seqno = low_watermark(positions)
    known = open_reader(log_url).state().relations
    applied = Versions(one for one in known if one.first_seqno is None or one.first_seqno <= applied_seqno)
    names = {(relation.schema, relation.table) for relation in relations}
    with target.transaction("recopy") as connection:
        there = find_tables(connection, relations)
        lacking = [relation for relation, table in zip(relations, there, strict=True) if table is None]
        former = {
            relation: before
            for relation in lacking
            if relation.oid is not None
            and (before := applied.latest(relation.schema, relation.table, relation.oid)) is not None
            and before.oid == relation.oid
            and (before.schema, before.table) not in names
        }
        found = find_tables(connection, list(former.values()))
        return tuple(
            statement.as_string(connection)
            for (relation, before), table in zip(former.items(), found, strict=True)
            if table is not None and not is_anothers(connection, target, before)
            for statement in renaming_statements(
                Renaming(pairs=(((before.schema, before.table), (relation.schema, relation.table)),), is_certain=True)
            )
        )
