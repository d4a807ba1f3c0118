"""Checks what keeps a copy from being made at the target, beside what keeps any run from applying. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.postgres.extensions import extension_findings
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import find_tables
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.rights import current_role
from airflow_parallel_apply.pipeline.target.postgres.replica_role import may_be_replica, replica_grant
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.quoting import quoted

_finding: Final = partial(new_finding, Side.TARGET)


def copy_findings_at(
    config: PipelineConfig, source: Endpoint, target: Endpoint, relations: Sequence[Relation]
) -> tuple[Finding, ...]:
    """In sessions of its own, with what a first run finds as it makes the tables. Errors: the pipeline's."""
    with closing(Session(target.url, pipeline=config.pipeline)) as session, session.transaction("check") as connection:
        found = copy_findings(connection, relations, create_tables=config.create_tables)
        if not config.create_tables:
            return found
        return (*found, *extension_findings(config, source, connection, missing_tables(connection, relations)))


def copy_findings(connection: Connection, relations: Sequence[Relation], *, create_tables: bool) -> tuple[Finding, ...]:
    """In the caller's transaction. Errors: psycopg's own."""
    keeps_keys = not may_be_replica(connection)
    if not create_tables and not keeps_keys:
        return ()
    role = current_role(connection)
    there = [table.oid for table in find_tables(connection, relations) if table is not None]
    missing = missing_tables(connection, relations) if create_tables else ()
    return (
        *_schema_findings(connection, missing, role),
        *(_key_findings(connection, there, role) if keeps_keys else ()),
    )


def missing_tables(connection: Connection, relations: Sequence[Relation]) -> Sequence[Relation]:
    """Those of the relations that the target has no table of. Errors: psycopg's own."""
    found = find_tables(connection, relations)
    return [relation for relation, table in zip(relations, found, strict=True) if table is None]


def _schema_findings(connection: Connection, missing: Sequence[Relation], role: str) -> Iterator[Finding]:
    schemas = sorted({relation.schema for relation in missing})
    query = statement("check", "closed_schemas", package=__package__)
    for (schema,) in connection.execute(query, {"schemas": schemas}):
        yield _finding(
            f"schema {schema}",
            f"role {role} may not create tables in the schema {schema}, and some are missing there",
            f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {quoted(role)}",
            note="As the schema's owner.",
        )


def _key_findings(connection: Connection, oids: Sequence[int], role: str) -> Iterator[Finding]:
    """Tables are filled in no order, so foreign keys must not be looked at meanwhile."""
    keys = [name for name, *_ in connection.execute(statement("tables", "foreign_keys"), {"oids": list(oids)})]
    if keys:
        yield _finding(
            f"role {role}",
            f"the tables have foreign keys, which a copy in parallel cannot keep: {', '.join(keys)}",
            replica_grant(role),
            note="As a superuser. Or drop the keys until the copy is there, or let create_tables make the tables.",
        )
