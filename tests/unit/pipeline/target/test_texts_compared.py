"""Values of the target are compared by their texts, and those that might print another one are looked at."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.target.postgres.catalog.columns import ColumnRow, TargetColumn, column_of
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.merge.parts import is_other
from airflow_parallel_apply.pipeline.target.postgres.staging.exact import inexact_columns

TEXT, XML, TEXTS = 25, 142, 1042


def column(type_sql: str, *, oid: int = TEXT, fuzzy: bool = False, counts_bytes: bool = False) -> TargetColumn:
    row = ColumnRow(
        name="v",
        type_oid=oid,
        type_sql=type_sql,
        plain_type_sql=type_sql,
        generated=False,
        identity_always=False,
        not_null=False,
        has_default=False,
        fuzzy=fuzzy,
        virtual=False,
    )
    return column_of(row, None, counts_bytes=counts_bytes)


def is_looked_at(found: TargetColumn) -> bool:
    relation = Relation(
        relation_id=1,
        schema="public",
        table="t",
        replica_identity=ReplicaIdentity.KEY,
        columns=(Column(name="v", type_name=found.type_sql),),
    )
    table = TargetTable(
        oid=1,
        is_partitioned=False,
        partitioned_by=(),
        relation=relation,
        columns={"v": found},
        unique_indexes=(),
        fires=False,
        has_guards=False,
        fires_as_replica=False,
        references_act_as_replica=False,
    )
    return inexact_columns(table) == (0,)


@pytest.mark.parametrize("type_sql", ["xml", "xml[]"])
def test_xml_is_looked_at_though_both_sides_have_it(type_sql: str) -> None:
    """Each time it is printed it leaves out an empty first line. (The tests' servers know no XML.)"""
    assert is_looked_at(column(type_sql, oid=XML))


@pytest.mark.parametrize(
    ("type_sql", "counts"),
    [
        ("character(3)", True),
        ("character varying(3)[]", True),
        ("character varying", False),
        ("text", False),
        ("integer", False),
    ],
)
def test_texts_with_a_length_are_looked_at_where_that_counts_bytes(type_sql: str, counts: bool) -> None:
    assert is_looked_at(column(type_sql, oid=TEXTS, counts_bytes=True)) is counts
    assert not is_looked_at(column(type_sql, oid=TEXTS))


def test_texts_that_a_collation_takes_for_equal_are_told_apart() -> None:
    """The tests' servers make no collation that is not deterministic."""
    assert is_other(column("text", fuzzy=True)).as_string(None) == (
        '(ROW("t"."v")::text COLLATE "C") <> (ROW("s"."v")::text COLLATE "C")'
    )
    assert is_other(column("text")).as_string(None) == '"t"."v" IS DISTINCT FROM "s"."v"'
