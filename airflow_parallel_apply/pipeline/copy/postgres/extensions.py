"""Extensions that the target lacks, and whose types its missing tables and columns need. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named
from airflow_parallel_apply.postgres.quoting import quoted

_NOTE: Final = "As a superuser; or, of a trusted extension, as a role that may create in the database."


def extension_findings(
    config: PipelineConfig,
    source: Endpoint,
    connection: Connection,
    missing: Sequence[Relation],
    columns: Sequence[str] | None = None,
) -> Iterator[Finding]:
    """`missing`: tables of which the target lacks these `columns`; None: all of each. `connection`: the target's.
    Errors: the source's; psycopg's own.
    """
    if not missing:
        return
    wants = {
        **named((relation.schema, relation.table) for relation in missing),
        "columns": None if columns is None else [*columns],
    }
    name = f"parallel_apply {config.pipeline} check"
    with closing(SourceSession(source, application_name=name)) as session, session.errors("check"):
        query = statement("check", "types_of_extensions", package=__package__)
        used = session.catalog().execute(query, wants).fetchall()
    wanted = dict.fromkeys((schema, extension) for schema, extension, _, _ in used)
    there = statement("check", "extensions", package=__package__)
    found: dict[str, str] = dict(
        connection.execute(there, {"names": [extension for _, extension in wanted]}).fetchall()
    )
    schemas = {schema for (schema,) in connection.execute("SELECT nspname::text FROM pg_catalog.pg_namespace")}
    for schema, extension in wanted:
        if found.get(extension) == schema:
            continue
        table, column = next((one, column) for *key, one, column in used if key == [schema, extension])
        fix = (
            f"ALTER EXTENSION {quoted(extension)} SET SCHEMA {quoted(schema)}"
            if extension in found
            else f"CREATE EXTENSION {quoted(extension)} WITH SCHEMA {quoted(schema)}"
        )
        yield new_finding(
            Side.TARGET,
            f"extension {extension}",
            f"the extension {extension} is not there in the schema {schema}, and the column {column} of {table} has a "
            "type of it",
            *(() if schema in schemas else (f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}",)),
            fix,
            note=_NOTE,
        )
