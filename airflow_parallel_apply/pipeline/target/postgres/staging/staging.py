"""Staging tables: one for each relation and Spark attempt, typed as the target's columns, in the pipeline's schema.

Unlogged: a crash of the server empties them, which `merge` notices by the counts. Created in the transaction that
fills them, so that COPY may freeze rows and an attempt that dies leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import StagingLost
from airflow_parallel_apply.pipeline.target.postgres.catalog.columns import TargetColumn
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA, claim_tag, staging_prefix
from airflow_parallel_apply.pipeline.target.postgres.staging.narrow import constraints, narrow_columns
from airflow_parallel_apply.pipeline.target.postgres.staging.staged_columns import (
    operation_column,
    text_column,
    unsent_column,
)
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

MOST_COLUMNS: Final = 1598
"""Columns that a relation may have: the server's 1600 without these two."""


def require_staging(connection: psycopg.Connection[Any], tables: Mapping[str, TargetTable]) -> None:
    """Check that staging is still there: loaders commit without waiting for the disk, so a crash of the target may have
    taken a whole staging table back. And that the columns' types are those that it was staged for. `tables`: by the
    names of their staging. Errors: `StagingLost`; psycopg's own.
    """
    query = statement("staging", "gone")
    oids = [table.oid for table in tables.values()]
    gone = connection.execute(query, {"schema": SCHEMA, "names": [*tables], "tables": oids}).fetchone()
    if gone is not None:
        name, is_there = gone
        what = f"is for other types than {tables[name].relation.name} has by now" if is_there else "is gone"
        raise StagingLost(f"staging table {name} {what}", hint="The unit is staged again.")


def create_staging(staging: str, table: TargetTable, inexact: Sequence[int]) -> sql.Composed:
    """With the target's types and collations, without its defaults and constraints; of a domain, the type below it,
    since deletes have NULLs. `inexact`: columns whose texts are kept, too.
    """
    narrow = narrow_columns(table)

    def type_of(index: int, column: TargetColumn) -> str:
        return column.plain_type_sql if index in narrow else column.type_sql

    columns = sql.SQL(", ").join(
        sql.SQL("{name}::{type} AS {name}").format(
            type=sql.SQL(type_of(index, table.columns[column.name])), name=sql.Identifier(column.name)
        )
        for index, column in enumerate(table.relation.columns)
    )
    created = sql.SQL(
        "CREATE UNLOGGED TABLE {staging} WITH (autovacuum_enabled = off) AS "
        'SELECT NULL::"char" AS {operation}, {columns}, {texts}NULL::text AS {unsent} FROM {target} WITH NO DATA'
    ).format(
        staging=sql.Identifier(SCHEMA, staging),
        operation=operation_column(table.relation),
        columns=columns,
        texts=sql.SQL("").join(
            sql.SQL("NULL::text AS {}, ").format(text_column(table.relation, index)) for index in inexact
        ),
        unsent=unsent_column(table.relation),
        target=table.identifier,
    )
    if not narrow:
        return created
    checks = sql.SQL(", ").join(constraints(table))
    return created + sql.SQL("; ALTER TABLE {} ").format(sql.Identifier(SCHEMA, staging)) + checks


def copy_into_staging(staging: str, table: TargetTable, inexact: Sequence[int], *, with_unsent: bool) -> sql.Composed:
    """The COPY whose data `staging_text` builds."""
    columns = [operation_column(table.relation), *(sql.Identifier(column.name) for column in table.relation.columns)]
    columns += [text_column(table.relation, index) for index in inexact]
    if with_unsent:
        columns.append(unsent_column(table.relation))
    return sql.SQL("COPY {staging} ({columns}) FROM STDIN (FREEZE)").format(
        staging=sql.Identifier(SCHEMA, staging), columns=sql.SQL(", ").join(columns)
    )


def copy_into_table(table: TargetTable) -> sql.Composed:
    """The COPY whose data `row_text` builds."""
    return sql.SQL("COPY {table} ({columns}) FROM STDIN").format(
        table=table.identifier,
        columns=sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns),
    )


def drop_staging(names: Sequence[str]) -> sql.Composed:
    """Drop staging tables that another holder of a channel may be dropping, too."""
    return sql.SQL("DROP TABLE IF EXISTS {names}").format(
        names=sql.SQL(", ").join(sql.Identifier(SCHEMA, name) for name in names)
    )


def drop_foreign_staging(
    connection: psycopg.Connection[Any],
    *,
    pipeline: str,
    scopes: Sequence[str] | None,
    but_token: str,
    but_from_group: int | None = None,
) -> None:
    """Drop what former holders of the scopes (None: any) staged, but for this group and those behind it. Their sessions
    must have been ended.
    """
    _drop_found(
        connection,
        "foreign_staging",
        pipeline,
        scopes=list(scopes) if scopes is not None else None,
        from_group=but_from_group,
        claim=claim_tag(but_token),
    )


def drop_claim_staging(connection: psycopg.Connection[Any], *, pipeline: str, token: str) -> None:
    """Drop what was staged under a claim."""
    _drop_found(connection, "claim_staging", pipeline, claim=claim_tag(token))


def _drop_found(connection: psycopg.Connection[Any], query: str, pipeline: str, **which: object) -> None:
    found = connection.execute(
        statement("staging", query), {"schema": SCHEMA, "prefix": staging_prefix(pipeline), **which}
    )
    names = [row[0] for row in found]
    if names:
        connection.execute(drop_staging(names))
