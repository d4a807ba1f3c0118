"""Where the values of a newer definition's columns are in rows of an older one."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.target.older_rows import origin_of


def definition(relation_id: int, *columns: tuple[str, int | None]) -> Relation:
    return Relation(
        relation_id=relation_id,
        schema="public",
        table="t",
        replica_identity=ReplicaIdentity.KEY,
        columns=tuple(Column(name=name, type_name="integer", number=number) for name, number in columns),
    )


def test_a_renamed_column_whose_number_only_its_neighbours_tell_is_found() -> None:
    older = definition(1, ("a", 1), ("b", None), ("c", 3))
    newer = definition(2, ("a", 1), ("bb", 2), ("c", 3))
    assert origin_of(older, newer).places == (0, 1, 2)
    assert origin_of(
        definition(3, ("a", 1), ("b", 2), ("c", 3)), definition(4, ("a", 1), ("bb", None), ("c", 3))
    ).places == (
        0,
        1,
        2,
    )
