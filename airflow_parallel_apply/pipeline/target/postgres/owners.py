"""Finds tables of the target that the role could not alter: only an owner may, whatever is granted."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named
from airflow_parallel_apply.postgres.quoting import quoted

_NOTE = "With ddl=apply it alters them. As a superuser, or as the owner where the role is to own them."


def owner_findings(connection: Connection, relations: Sequence[Relation]) -> tuple[Finding, ...]:
    """A warning for each table that the role does not own, with the command. Tables that are missing are left out."""
    names = named((one.schema, one.table) for one in relations)
    return tuple(
        Finding(
            severity=Severity.WARNING,
            side=Side.TARGET,
            where=f"{schema}.{table}",
            what=f"role {role} does not own {schema}.{table}, so it cannot change its columns",
            is_table=True,
            fix=(f"ALTER TABLE {quoted(schema, table)} OWNER TO {quoted(role)}",),
            note=_NOTE,
        )
        for schema, table, role in connection.execute(statement("check", "not_owned"), names).fetchall()
    )
