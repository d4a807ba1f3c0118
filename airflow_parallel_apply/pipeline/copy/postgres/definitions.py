"""The source's tables as statements that make them at the target: what a COPY needs first, the rest after the load.

The server writes them itself (`pg_get_expr` and its like), under an empty search path, so that every name is qualified.
Not made: owners, privileges, comments, triggers, rules, policies, statistics objects, defaults that call functions or
sequences of the source's own, and constraints of domains that are not validated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A table, or a partition of one that comes before it."""

    schema: str
    table: str
    is_partition: bool
    text: str
    defaults_left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeDefinition:
    """An enum, domain, composite or range."""

    schema: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceDefinition:
    """The sequence of a serial or identity column; that of an identity column comes with its table."""

    schema: str
    name: str
    table: tuple[str, str]
    column: str
    is_identity: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A constraint, an index or a tie between tables, made after the load. `needs`: a table, quoted."""

    table: tuple[str, str]
    text: str
    needs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """All that is to be made, in order. `indexes`: primary keys, unique and exclusion constraints, indexes; `checks`
    take no order; `references`: foreign keys, once the indexes of all tables are there; `ties`: inheritance of tables
    that were not made with it.
    """

    schemas: tuple[str, ...]
    types: tuple[TypeDefinition, ...]
    sequences: tuple[SequenceDefinition, ...]
    tables: tuple[TableDefinition, ...]
    indexes: tuple[Addition, ...]
    checks: tuple[Addition, ...]
    references: tuple[Addition, ...]
    ties: tuple[Addition, ...]

    @property
    def defaults_left_out(self) -> str:
        """The columns whose defaults are not made, in a sentence; empty if there are none."""
        columns = [f"{table.schema}.{table.table}.{name}" for table in self.tables for name in table.defaults_left_out]
        if not columns:
            return ""
        return f"Left out defaults that call functions or sequences of the source's own: {', '.join(columns)}."


def read_types(
    connection: psycopg.Connection[Any], relation: Relation, columns: Sequence[str]
) -> tuple[TypeDefinition, ...]:
    """Read what these columns of a table of the source are made of, in the order in which it has to be made. Errors:
    psycopg's own.
    """
    return _types(connection, _oids(connection, [relation]), columns)


def read_definitions(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> Definitions:
    """Read the definitions of these tables of the source. Errors: psycopg's own."""
    oids = _oids(connection, relations)
    wanted = {"oids": oids, "heirs": [oid for (oid,) in connection.execute(_sql("heirs"), {"oids": oids})]}
    tables = tuple(
        TableDefinition(
            schema=schema, table=table, is_partition=is_partition, text=text, defaults_left_out=tuple(left_out)
        )
        for schema, table, is_partition, text, left_out in connection.execute(_sql("tables"), wanted)
    )
    types = _types(connection, oids)
    sequences = tuple(
        SequenceDefinition(
            schema=schema, name=name, table=(table_schema, table), column=column, is_identity=is_identity, text=text
        )
        for schema, name, table_schema, table, column, is_identity, text in connection.execute(
            _sql("sequences"), wanted
        )
    )
    constraints = connection.execute(_sql("constraints"), wanted).fetchall()
    indexes = connection.execute(_sql("indexes"), wanted).fetchall()
    inheritance = connection.execute(_sql("inheritance"), wanted).fetchall()
    return Definitions(
        schemas=tuple(
            sorted(
                {table.schema for table in tables}
                | {kind.schema for kind in types}
                | {sequence.schema for sequence in sequences}
            )
        ),
        types=types,
        sequences=sequences,
        tables=tables,
        indexes=(
            *(
                Addition(table=(schema, table), text=text)
                for schema, table, kind, text, _ in constraints
                if kind not in "cf"
            ),
            *(Addition(table=(schema, table), text=text) for schema, table, text in indexes),
        ),
        checks=tuple(
            Addition(table=(schema, table), text=text) for schema, table, kind, text, _ in constraints if kind == "c"
        ),
        references=tuple(
            Addition(table=(schema, table), text=text, needs=needs)
            for schema, table, kind, text, needs in constraints
            if kind == "f"
        ),
        ties=tuple(Addition(table=("", ""), text=text, needs=needs) for needs, text in inheritance),
    )


def sequence_value(connection: psycopg.Connection[Any], sequence: SequenceDefinition) -> tuple[int, bool]:
    """The last value that it gave, and whether it gave it yet. Errors: psycopg's own."""
    row = connection.execute(
        sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(sequence.schema, sequence.name))
    ).fetchone()
    return (row[0], row[1]) if row is not None else (1, False)


def _oids(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> list[int]:
    """Those of tables and all their partitions."""
    names = named((relation.schema, relation.table) for relation in relations)
    return [oid for (oid,) in connection.execute(_sql("tree"), names)]


def _types(
    connection: psycopg.Connection[Any], oids: Sequence[int], columns: Sequence[str] | None = None
) -> tuple[TypeDefinition, ...]:
    found = connection.execute(
        _sql("types"), {"oids": list(oids), "columns": None if columns is None else list(columns)}
    )
    return tuple(TypeDefinition(schema=schema, name=name, text=text) for schema, name, text in found)


def _sql(name: str) -> sql.Composed:
    return statement("definitions", name, package=__package__)
