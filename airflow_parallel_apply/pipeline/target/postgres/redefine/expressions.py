"""Compares the expressions of generated columns, at the source and here, as their servers print them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import (
    casts_what_is_computed,
    computes_alike,
    is_plain_cast,
)
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import retyping as giving_type
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import unlike
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.generated_text import (
    as_taken,
    expression_of,
    is_virtual,
    reads_its_server,
    type_of,
)
from airflow_parallel_apply.postgres.quoting import quoted

_FIRST_WITH_SET_EXPRESSION: Final = 170000
OTHERWISE: Final = "the target computes the column by another expression than the source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A column that the target computes, in a table of the relation or, as `place` says, in a partition of it.
    `definition`: the source's. `unlike`: the indexes in the relation of those columns that it is computed of which have
    another type here. `beside`: those that are computed of such columns, itself included.
    """

    table: TargetTable
    place: str
    name: str
    type_name: str
    expression: str
    definition: str
    unlike: tuple[int, ...]
    beside: tuple[Computed, ...] = ()

    @property
    def relation(self) -> Relation:
        """Its table's."""
        return self.table.relation

    @property
    def difference(self) -> str:
        """For people."""
        columns = [self.relation.columns[index] for index in self.unlike]
        ours = [f"{column.name} is {self.table.columns[column.name].declared_sql}" for column in columns]
        theirs = [f"{column.name} is {column.type_name}" for column in columns]
        return (
            f"{self.place} has it as {self.type_name} as {self.expression}{_where(ours)}, "
            f"the source as {type_of(self.definition)} as {expression_of(self.definition)}{_where(theirs)}"
        )

    def fix(self, connection: Connection) -> str:
        """The statements after which the target computes it as the source does, in all rows and partitions; or not at
        all, where it reads what no two servers have alike.
        """
        table, name = quoted(self.relation.schema, self.relation.table), quoted(self.name)
        if reads_its_server(self.definition):
            return f"ALTER TABLE {table} DROP COLUMN {name}"
        if self.is_fixed_in_place(connection):
            retype = "" if _fits(self) else f"ALTER COLUMN {name} TYPE {type_of(self.definition)}, "
            return f"ALTER TABLE {table} {retype}{self.computing_anew}"
        # The server alters no type of a column that others are computed of.
        made = {one.name: as_taken(one.definition, connection.info.server_version) for one in self.beside or (self,)}
        drops = ", ".join(f"DROP COLUMN {quoted(one)}" for one in made)
        adds = ", ".join(f"ADD COLUMN {quoted(one)} {definition}" for one, definition in made.items())
        retypes = [giving_type(self.table, index) for index in sorted({at for one in self.beside for at in one.unlike})]
        if not retypes:
            return f"ALTER TABLE {table} {drops}, {adds}"
        commands = (text for commands in retypes for text in commands)
        return "; ".join((f"ALTER TABLE {table} {drops}", *commands, f"ALTER TABLE {table} {adds}"))

    @property
    def at_source(self) -> str:
        """The part of a hint to fix it that is about the source, where that may have older values that were cast to the
        type, and not computed under it: no fix makes the target have those.
        """
        if is_virtual(self.definition) or casts_what_is_computed(self.type_name, type_of(self.definition)):
            return ""
        table = quoted(self.relation.schema, self.relation.table)
        return (
            "Where the source altered its TYPE, and did not drop it and add it again, its older values were cast "
            f"there: run ALTER TABLE {table} {self.computing_anew} at the source, which computes them anew (before "
            "PostgreSQL 17: drop it and add it again)."
        )

    @property
    def first(self) -> str:
        """The same as the beginning of a hint."""
        return f"{self.at_source} Then go on: " if self.at_source else ""

    @property
    def computing_anew(self) -> str:
        """The end of the statement that computes all its values anew, at either side, by the source's expression."""
        return f"ALTER COLUMN {quoted(self.name)} SET EXPRESSION AS ({expression_of(self.definition)})"

    def is_cast_in_place(self, connection: Connection) -> bool:
        """True if its type alone is another one, under which its values are what they were."""
        type_name = type_of(self.definition)
        return casts_what_is_computed(self.type_name, type_name) and _is_same(
            connection, replace(self, type_name=type_name)
        )

    def is_fixed_in_place(self, connection: Connection) -> bool:
        """True if it only has to be computed anew, because the source's values have been."""
        if connection.info.server_version < _FIRST_WITH_SET_EXPRESSION or self.unlike:
            return False
        type_name = type_of(self.definition)
        is_plain = is_virtual(self.definition) and is_plain_cast(self.type_name, type_name)
        return is_plain or casts_what_is_computed(self.type_name, type_name)


def computed_otherwise(connection: Connection, tables: Sequence[TargetTable]) -> Iterator[Computed]:
    """Columns that both sides compute, by expressions that are not known to be the same. Not those of a table that
    lacks columns of its definition, or has them under other names: that is told first, where its rows come. Inside a
    transaction. Errors: psycopg's own.
    """
    wanted = {
        (table.oid, name): (table, definition)
        for table in tables
        if all(column.name in table.columns for column in table.relation.columns)
        for name, definition in table.relation.expressions
        if name in table.columns and table.columns[name].generated
    }
    if not wanted:
        return
    with without_search_path(connection):
        found = connection.execute(
            statement("expressions", "computed"), {"oids": list({oid for oid, _ in wanted})}
        ).fetchall()
        columns = [
            Computed(
                table=table,
                place=place,
                name=name,
                type_name=type_name,
                expression=text,
                definition=definition,
                unlike=unlike(table, read),
            )
            for oid, place, name, type_name, text, read in found
            if (oid, name) in wanted
            for table, definition in [wanted[oid, name]]
        ]
        other = [column for column in columns if not _is_same(connection, column)]
    for column in other:
        beside = (one for one in columns if one.table.oid == column.table.oid and one.unlike and column.unlike)
        yield replace(column, beside=tuple({one.name: one for one in beside}.values()))


def require_computed_alike(connection: Connection, tables: Sequence[TargetTable]) -> None:
    """Errors: `TargetError` that names the first column that is computed otherwise; psycopg's own."""
    for column in computed_otherwise(connection, tables):
        raise TargetError(
            f"{OTHERWISE}: {column.difference}",
            table=column.relation.name,
            column=column.name,
            hint=f"{column.first}Run {column.fix(connection)} at the target, then run again.",
        )


def _is_same(connection: Connection, column: Computed) -> bool:
    theirs = expression_of(column.definition)
    if reads_its_server(column.definition) or not _fits(column) or column.unlike:
        return False
    # Servers of other versions may print one expression in other words. To ask is dear: it makes a table, and no
    # transaction that has made a temporary one can be prepared.
    return theirs == column.expression or _as_printed_here(connection, column) == column.expression


def _fits(column: Computed) -> bool:
    return computes_alike(type_of(column.definition), column.type_name)


def _where(what: Sequence[str]) -> str:
    return f", where {' and '.join(what)}" if what else ""


def _as_printed_here(connection: Connection, column: Computed) -> str | None:
    """The source's expression as this server prints it, found with a temporary table that is rolled back; None if the
    server does not accept it, or the role may not create one.
    """
    found = None
    type_name, expression = type_of(column.definition), expression_of(column.definition)
    definition = sql.SQL(f"{type_name} GENERATED ALWAYS AS ({expression}) STORED")
    table, like = sql.Identifier("pg_temp", "computed"), sql.Identifier(column.relation.schema, column.relation.table)
    name = sql.Identifier(column.name)
    try:
        with connection.transaction():
            connection.execute(sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {})").format(table, like))
            alter = sql.SQL("ALTER TABLE {} DROP COLUMN {}, ADD COLUMN {} {}").format(table, name, name, definition)
            # By the protocol that takes one statement, whatever the text says.
            connection.execute(alter, binary=True)
            found = connection.execute(
                "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'pg_temp.computed'::regclass"
            ).fetchone()
            raise psycopg.Rollback
    except (psycopg.ProgrammingError, psycopg.NotSupportedError):
        return None
    return str(found[0]) if found is not None else None
