"""The target's index by which rows are found."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.target.postgres.catalog.indexes import UniqueIndex
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable


def test_one_that_cannot_compare_a_column_of_the_key_is_none() -> None:
    """As that of a `cidr`, WITHOUT OVERLAPS, by an extension's operators, which the tests' servers lack."""
    columns = tuple(Column(name=name, type_name=name, key=True) for name in ("cidr", "daterange"))
    index = UniqueIndex(
        name="k",
        usable=True,
        exclusion=True,
        immediate=True,
        columns=("cidr", "daterange"),
        operators=(None, "OPERATOR(pg_catalog.=)"),
        referenced=(),
    )
    table = TargetTable(
        oid=1,
        is_partitioned=False,
        partitioned_by=(),
        relation=Relation(
            relation_id=1, schema="public", table="t", replica_identity=ReplicaIdentity.KEY, columns=columns
        ),
        columns={},
        unique_indexes=(index,),
        fires=False,
        has_guards=False,
        fires_as_replica=False,
        references_act_as_replica=False,
    )
    with pytest.raises(TargetError, match=r"no unique index over exactly the key \(cidr, daterange\)"):
        table.key_operators()
