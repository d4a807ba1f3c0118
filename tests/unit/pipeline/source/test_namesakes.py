"""Tables whose names differ in nothing but where the schema's ends."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import SourceTable
from airflow_parallel_apply.pipeline.source.postgres.check import namesakes


def table(oid: int, schema: str, name: str) -> SourceTable:
    return SourceTable(
        oid=oid,
        schema=schema,
        table=name,
        replica_identity="d",
        has_primary_key=True,
        is_partitioned=False,
        is_owner=True,
        can_select=True,
        is_published=False,
        generated="",
    )


def test_two_tables_that_would_be_one_in_a_log_are_both_named() -> None:
    found = [one.what for one in namesakes([table(1, "a", "b.c"), table(2, "a.b", "c"), table(3, "a", "b")])]
    assert found == [
        '"a"."b.c" and another followed table are both a.b.c',
        '"a.b"."c" and another followed table are both a.b.c',
    ]
