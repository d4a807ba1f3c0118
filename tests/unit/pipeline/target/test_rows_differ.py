"""The hint of rows that the target does not have: it tells equal keys apart only where a command does so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import rows_differ


@pytest.mark.parametrize(
    ("type_name", "kind", "is_told"),
    [
        ("numeric(10,2)", KeyKind.DECIMAL, True),
        ("interval", KeyKind.NOT_CANONICAL, True),
        ("character(9)", KeyKind.BLANK_PADDED, True),
        ("character(9)", KeyKind.NOT_CANONICAL, False),
        ("character varying(9)", KeyKind.NOT_CANONICAL, False),
        ("citext", KeyKind.NOT_CANONICAL, False),
        ("integer", KeyKind.INTEGER, False),
    ],
)
def test_a_key_that_is_a_text_at_the_target_gets_a_type_that_compares_its_values(
    type_name: str, kind: KeyKind, is_told: bool
) -> None:
    column = Column(name="k", type_name=type_name, kind=kind, key=True)
    relation = Relation(
        relation_id=0, schema="public", table="t", replica_identity=ReplicaIdentity.KEY, columns=(column,)
    )
    found = SimpleNamespace(plain_type_sql="text", type_sql="text", declared_sql="text", has_default=False)
    table: Any = SimpleNamespace(relation=relation, columns={"k": found})
    assert (f"TYPE {type_name} USING" in rows_differ(table)) == is_told
