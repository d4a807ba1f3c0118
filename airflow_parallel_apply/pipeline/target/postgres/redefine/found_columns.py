"""The columns that a table of the target has, where its definition is compared with a newer one of the source's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """`type_name`: as the source's are told. `generated`: empty, "s" (stored) or "v" (virtual). `owner`: schema and
    name of the table that it is inherited from. `is_partitioned`: its own table is.
    """

    type_name: str
    generated: str
    is_required: bool
    owner: tuple[str, str] | None
    is_partitioned: bool


Columns: TypeAlias = Mapping[str, FoundColumn]


def find_columns(connection: Connection, relation: Relation) -> Columns:
    """By name; none of a table that is not there. Inside a transaction. Errors: psycopg's own."""
    with without_search_path(connection):
        found = connection.execute(
            statement("found_columns", "find"), {"schema": relation.schema, "table": relation.table}
        ).fetchall()
    return {
        str(name): FoundColumn(
            str(type_name), str(generated), bool(is_required), tuple(owner) if owner else None, kind == "p"
        )
        for name, type_name, generated, is_required, owner, kind in found
    }
