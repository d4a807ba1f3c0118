"""The target's tables as its catalog describes them, read anew in each transaction: DDL may have run in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.columns import (
    WITHOUT_LETTERS,
    ColumnRow,
    TargetColumn,
    column_of,
    made_types,
)
from airflow_parallel_apply.pipeline.target.postgres.catalog.held import note_held
from airflow_parallel_apply.pipeline.target.postgres.catalog.indexes import UniqueIndex, unique_indexes
from airflow_parallel_apply.pipeline.target.postgres.catalog.lacking_key import making_key
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import require_fit
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named, numbers
from airflow_parallel_apply.postgres.generated_text import reads_its_server

_TABLE_KINDS: Final = ("r", "p")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A table of the target, seen for one relation of the log."""

    oid: int
    is_partitioned: bool
    partitioned_by: tuple[str | None, ...]
    """The columns by which it, or a partition of it, is partitioned; None for an expression."""
    relation: Relation
    columns: Mapping[str, TargetColumn]
    unique_indexes: tuple[UniqueIndex, ...]
    fires: bool
    """It has triggers, foreign keys (either end) or rules that act on applied rows unless a replica applies them."""
    has_guards: bool
    """It, or a partition of it, has triggers of its owner's or rules that act on applied rows unless a replica applies.
    """
    fires_as_replica: bool
    """It, or a partition of it, has triggers or rules that act even in a replica's transactions."""
    references_act_as_replica: bool
    """Foreign keys that refer to it, and change the rows that do, act even in a replica's transactions."""
    lost_columns: tuple[str, ...] = ()
    """Those of the relation whose values are gone with other columns that had their names. See `describe_applied`."""

    def is_guarded(self, *, as_replica: bool) -> bool:
        """True if triggers or rules act on the rows that are applied: they may change them."""
        return self.fires_as_replica if as_replica else self.has_guards

    @property
    def identifier(self) -> sql.Identifier:
        """Qualified and quoted."""
        return sql.Identifier(self.relation.schema, self.relation.table)

    @property
    def own_rows(self) -> sql.Composed:
        """The name for UPDATE, DELETE and TRUNCATE: it leaves out the rows of tables that inherit from this one, which
        have lives of their own. A partitioned table has no rows but its partitions'.
        """
        return sql.SQL("{}" if self.is_partitioned else "ONLY {}").format(self.identifier)

    def is_key(self, column: str) -> bool:
        """True if it is one of the relation's key columns."""
        return any(found.key for found in self.relation.columns if found.name == column)

    @property
    def key_index(self) -> UniqueIndex | None:
        """The unique index over exactly the relation's key columns. Not one of a deferrable constraint: in a replica's
        transaction nothing checks it, so a row that is there already would be there twice.
        """
        return next((index for index in self._key_indexes if index.immediate), None)

    @property
    def has_deferrable_key(self) -> bool:
        """True if the only such indexes are those of deferrable constraints."""
        return bool(self._key_indexes) and self.key_index is None

    @property
    def _key_indexes(self) -> list[UniqueIndex]:
        key = {*self.relation.key_names}
        usable = (index for index in self.unique_indexes if index.usable and None not in index.operators)
        return [index for index in usable if key and set(index.columns) == key]

    @property
    def contended(self) -> tuple[str, ...]:
        """The relation's columns, without its key, by which rows of different keys may refuse each other.

        A deferrable index is not among them: in a replica's transaction nothing checks it. Neither is one that has the
        whole key among its columns, since it refuses nothing that the key's own does not.
        """
        sent = [column.name for column in self.relation.columns if not column.key]
        read: set[str] = set()
        for index in self.unique_indexes:
            if self._repeats_key(index) or not index.immediate:
                continue
            over = {*(column for column in index.columns if column is not None), *index.referenced}
            if not over or any(self.columns[name].generated for name in over if name in self.columns):
                # Of a generated column or a whole row: any column may be behind it.
                over.update(sent)
            read |= over
        return tuple(name for name in sent if name in read and not self.columns[name].generated)

    @property
    def is_told_apart_by_key(self) -> bool:
        """True if nothing but its key keeps a row from being there beside another one, for a replica's transaction."""
        return bool(self.relation.key_indexes) and all(
            self._repeats_key(index) or not index.immediate for index in self.unique_indexes
        )

    def _repeats_key(self, index: UniqueIndex) -> bool:
        """True if the index refuses nothing that the key's own does not: it has the whole key among its columns."""
        key = {*self.relation.key_names}
        return index.usable and not index.exclusion and bool(key) and key <= set(index.columns)

    @property
    def fixed(self) -> tuple[str, ...]:
        """The relation's columns, without its key, that take a value from insertions alone, as GENERATED ALWAYS AS
        IDENTITY makes them. At the source such a column may get its next value, and one that is another kind there any.
        """
        return tuple(
            column.name
            for column in self.relation.columns
            if not column.key and self.columns[column.name].identity_always
        )

    @property
    def missing_columns(self) -> tuple[str, ...]:
        """The columns that the relation has and the table lacks."""
        return tuple(column.name for column in self.relation.columns if column.name not in self.columns)

    @property
    def uncomputed_columns(self) -> tuple[str, ...]:
        """The columns that the source computes and does not send, while nothing computes them here: they would stay
        NULL.
        """
        return tuple(
            name
            for name in self.relation.computed or ()
            if name in self.columns and not self.columns[name].generated and not self.fires_as_replica
        )

    @property
    def lacking_computed(self) -> tuple[str, ...]:
        """The columns that the source computes and does not send, and the table lacks. Not those that no two servers
        compute alike.
        """
        known = dict(self.relation.expressions)
        lacking = (name for name in self.relation.computed or () if name not in self.columns)
        return tuple(name for name in lacking if not reads_its_server(known.get(name, "")))

    @property
    def overruled_columns(self) -> tuple[str, ...]:
        """The columns that this table computes and the source does not: they would not take the source's values."""
        return tuple(
            column.name
            for column in self.relation.columns
            if column.generated is False and column.name in self.columns and self.columns[column.name].generated
        )

    def key_operators(self) -> dict[str, sql.SQL]:
        """The equality of each key column, as its unique index has it. `TargetError` where there is no such index."""
        index = self.key_index
        if index is None:
            names = self.relation.key_names
            why = ": that of a deferrable constraint is not checked at once" if self.has_deferrable_key else ""
            commands, behind = making_key(self)
            alone = ", or make the source's primary key there; then run again" if len(commands) == 1 else ""
            raise TargetError(
                f"no unique index over exactly the key ({', '.join(names)}){why}",
                table=self.relation.name,
                hint=f"Run {'; '.join(commands)} at the target{alone}. {behind}; then run again.",
            )
        return {
            column: sql.SQL(operator)
            for column, operator in zip(index.columns, index.operators, strict=True)
            if column is not None and operator is not None
        }


def find_tables(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> tuple[TargetTable | None, ...]:
    """The table of each relation, None where there is none. Errors: psycopg's own."""
    names = named((found.schema, found.table) for found in relations)
    rows = connection.execute(statement("tables", "describe"), names).fetchall()
    described = {index: _Described(*facts[:_TABLE_FACTS]) for index, _, *facts in rows}
    of_columns = [(index, ColumnRow(name, *facts[_TABLE_FACTS:])) for index, name, *facts in rows if name is not None]
    types = made_types(connection, [row for _, row in of_columns])
    counts_bytes = connection.info.parameter_status("server_encoding") == WITHOUT_LETTERS
    columns: dict[int, dict[str, TargetColumn]] = {index: {} for index in described}
    for index, row in of_columns:
        columns[index][row.name] = column_of(row, types.get(row.type_oid), counts_bytes=counts_bytes)
    firing = _firing(connection, [found.oid for found in described.values() if found.may_fire])
    partitioned = [found.oid for found in described.values() if found.kind == "p"]
    indexes = unique_indexes(connection, [found.oid for found in described.values()], partitioned=partitioned)
    cut = _partitioned_by(connection, partitioned)
    return tuple(
        _table(relation, described[number], columns[number], indexes, firing, cut)
        if number in described and described[number].kind in _TABLE_KINDS
        else None
        for number, relation in enumerate(relations)
    )


def describe_tables(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> tuple[TargetTable, ...]:
    """As `find_tables`. Errors: as `require_fit`, too."""
    found = find_tables(connection, relations)
    version = connection.info.server_version
    return tuple(
        require_fit(relation, table, version, None if table is not None else found_instead(connection, relation))
        for relation, table in zip(relations, found, strict=True)
    )


def missing_tables(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> tuple[Relation, ...]:
    """Those that have no table here. Errors: psycopg's own."""
    found = find_tables(connection, relations)
    return tuple(relation for relation, table in zip(relations, found, strict=True) if table is None)


def hold_tables(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> tuple[TargetTable, ...]:
    """As `describe_tables`, of tables that stay as they are described until the transaction ends: an alteration in
    progress is waited for, and a later one waits. The catalog alone shows neither.
    """
    lock_tables(connection, relations)
    return describe_tables(connection, relations)


def lock_tables(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> None:
    """Keep the existing tables as they are until the transaction ends; `require_held` tells whether they kept their
    names, too. Errors: psycopg's own.
    """
    names = named((found.schema, found.table) for found in relations)
    there = connection.execute(statement("tables", "there"), names).fetchall()
    if there:
        tables = (sql.SQL("{}" if cut else "ONLY {}").format(sql.Identifier(*name)) for cut, *name in there)
        connection.execute(sql.SQL("LOCK TABLE {} IN ROW EXCLUSIVE MODE").format(sql.SQL(", ").join(tables)))
        note_held(connection, relations)


def found_instead(connection: psycopg.Connection[Any], relation: Relation) -> str | None:
    """The kind of what has the name of a table that is not there, as SQL calls it. Errors: psycopg's own."""
    found = connection.execute(
        "SELECT CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' WHEN 'f' THEN 'foreign table' "
        "WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index' WHEN 'I' THEN 'index' ELSE 'type' END "
        "FROM pg_catalog.pg_class WHERE oid = to_regclass(format('%%I.%%I', %s::text, %s::text))",
        [relation.schema, relation.table],
    ).fetchone()
    return None if found is None else str(found[0])


class _Described(NamedTuple):
    """The part of a row of the statement `describe` that is about the column's table."""

    oid: int
    kind: str
    may_fire: bool


_TABLE_FACTS: Final = len(_Described._fields)


class _Firing(NamedTuple):
    """The triggers and rules that act on the rows of a table: see `TargetTable`."""

    fires: bool
    has_guards: bool
    fires_as_replica: bool
    references_act_as_replica: bool


_NOTHING_FIRES: Final = _Firing(fires=False, has_guards=False, fires_as_replica=False, references_act_as_replica=False)


def _firing(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, _Firing]:
    if not oids:
        return {}
    found = connection.execute(statement("tables", "firing"), {"oids": numbers(oids)}).fetchall()
    return {oid: _Firing(*facts) for oid, *facts in found}


def _partitioned_by(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, tuple[str | None, ...]]:
    if not oids:
        return {}
    found = connection.execute(statement("tables", "partitioned_by"), {"oids": numbers(oids)}).fetchall()
    return {oid: tuple(columns) for oid, columns in found}


def _table(
    relation: Relation,
    found: _Described,
    columns: Mapping[str, TargetColumn],
    indexes: Mapping[int, tuple[UniqueIndex, ...]],
    firing: Mapping[int, _Firing],
    cut: Mapping[int, tuple[str | None, ...]],
) -> TargetTable:
    fires = firing.get(found.oid, _NOTHING_FIRES)
    return TargetTable(
        oid=found.oid,
        is_partitioned=found.kind == "p",
        partitioned_by=cut.get(found.oid, ()),
        relation=relation,
        columns=columns,
        unique_indexes=indexes.get(found.oid, ()),
        fires=fires.fires,
        has_guards=fires.has_guards,
        fires_as_replica=fires.fires_as_replica,
        references_act_as_replica=fires.references_act_as_replica,
    )
