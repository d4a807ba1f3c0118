"""Checks that a table of the target takes every row of the source's, each misfit with the statement that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, hint_of, new_finding
from airflow_parallel_apply.pipeline.target.mariadb.by_hand import adding
from airflow_parallel_apply.pipeline.target.mariadb.guards import guard_findings
from airflow_parallel_apply.pipeline.target.mariadb.mapping import BYTES, TEXTS, Refused, form_of, proposed_type
from airflow_parallel_apply.pipeline.target.mariadb.quoting import shown
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import MOST_COLUMNS, STORED
from airflow_parallel_apply.pipeline.target.mariadb.table_names import missing_table
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetColumn, TargetTable, find_table

_finding: Final = partial(new_finding, Side.TARGET)


def describe_table(session: Session, relation: Relation) -> TargetTable:
    """The table that a definition's rows go into. Errors: `TargetError` where there is none, or it lacks a column, as
    one that somebody has renamed before these rows were applied; the driver's own.
    """
    table = find_table(session, relation)
    if table is None:
        raise missing_table(session, relation)
    for column in relation.columns:
        if column.name not in table.columns:
            found = _lacking(table, column, shown(table.database, table.name))
            raise TargetError(
                found.what,
                table=relation.name,
                column=column.name,
                hint=f"{hint_of([found])} If the column was dropped here, restore what older rows had in it, unless "
                "the source drops it, too. Then run again.",
            )
    return table


def misfits(session: Session, relation: Relation) -> list[Finding]:
    """Find what keeps a table from taking the rows of a definition. Errors: the driver's own."""
    if impossible := _impossible_names(session, relation):
        found = [_unnamed(relation, impossible)]
    elif len(relation.columns) > MOST_COLUMNS:
        found = [_wide(relation)]
    else:
        table = find_table(session, relation)
        found = [_missing(session, relation)] if table is None else [*_table_findings(session, table)]
    return [replace(one, is_table=True) for one in found]


def creation(session: Session, relation: Relation) -> str:
    """The statement that makes a table for a definition's rows."""
    lines = [
        f"{shown(column.name)} {proposed_type(column)}{' NOT NULL' if column.key else ''}"
        for column in relation.columns
    ]
    keys = [relation.columns[index].name for index in relation.key_indexes]
    if keys:
        lines.append(f"PRIMARY KEY ({', '.join(shown(key) for key in keys)})")
    place = shown(*session.address.place(relation))
    return f"CREATE TABLE {place} ({', '.join(lines)}) {STORED} DEFAULT CHARACTER SET utf8mb4"


def _impossible_names(session: Session, relation: Relation) -> list[str]:
    """Names that no object of the server can have."""
    names = (*session.address.place(relation), *(column.name for column in relation.columns))
    return [name for name in names if name.endswith(" ") or max(name) > "\uffff"]


def _unnamed(relation: Relation, names: list[str]) -> Finding:
    return _finding(
        relation.name,
        f"{relation.name} has names that end in a blank, or have a character above U+FFFF, as none may at the target: "
        f"{', '.join(map(repr, names))}",
        note="Rename them at the source, or exclude the table.",
    )


def _wide(relation: Relation) -> Finding:
    return _finding(
        relation.name,
        f"{relation.name} has {len(relation.columns)} columns, and staging at the target takes {MOST_COLUMNS}",
        note="Exclude the table.",
    )


def _twins(relation: Relation) -> Finding:
    return _finding(
        relation.name,
        f"{relation.name} has columns whose names differ in their case only, which are one name at the target",
        note="Rename one at the source, or exclude the table.",
    )


def _missing(session: Session, relation: Relation) -> Finding:
    if _has_twins(relation):
        return _twins(relation)
    place = session.address.place(relation)
    known = session.row("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", [place[0]])
    making = () if known is not None else (f"CREATE DATABASE {shown(place[0])} DEFAULT CHARACTER SET utf8mb4",)
    return _finding(relation.name, f"the target has no table {'.'.join(place)}", *making, creation(session, relation))


def _table_findings(session: Session, table: TargetTable) -> Iterator[Finding]:
    relation, name = table.relation, shown(table.database, table.name)
    where = relation.name
    yield from guard_findings(session, table)
    if called := list(_called_otherwise(table, name)):
        yield from called
        return
    for column in relation.columns:
        found = table.columns.get(column.name)
        if found is None:
            yield _lacking(table, column, name)
            continue
        try:
            form_of(column, found)
        except Refused as error:
            yield _unfit(where, column, found, error, name)
    known = {column.name for column in relation.columns} | {column.name for column in table.unsent}
    for found in table.columns.values():
        if found.name not in known and not (found.is_nullable or found.has_default or found.is_generated):
            change = f"ALTER COLUMN {shown(found.name)} SET DEFAULT …"
            yield _about(
                where, found.name, "has neither a default nor NULL, and the source sends no value", change, name
            )
    keys = set(table.key_names)
    over_key = [columns for columns in table.unique_keys if set(columns) == keys and columns not in table.by_prefix]
    if over_key and all(columns in table.by_hash for columns in over_key):
        yield from _hashed(table, name)
    elif keys and not over_key:
        listed = ", ".join(shown(key) for key in table.key_names)
        yield _finding(
            where,
            f"{where} has no unique index over its key ({', '.join(table.key_names)}) at the target",
            f"ALTER TABLE {name} ADD UNIQUE ({listed})",
        )


def _hashed(table: TargetTable, name: str) -> Iterator[Finding]:
    """A key whose columns together are too long for a sorted index."""
    relation = table.relation
    for column in (relation.columns[index] for index in relation.key_indexes):
        found = table.columns[column.name]
        if found.type in (*TEXTS, *BYTES):
            yield _about(
                relation.name,
                column.name,
                f"is part of the key, and {found.full_type} is too long for an index that finds rows",
                f"MODIFY COLUMN {shown(column.name)} {proposed_type(column)} NOT NULL",
                name,
            )


def _called_otherwise(table: TargetTable, name: str) -> Iterator[Finding]:
    """Find columns whose names have the same letters in another case: to the server they are one name."""
    relation = table.relation
    if _has_twins(relation):
        yield _twins(relation)
        return
    here = {found.lower(): found for found in table.columns}
    for column in relation.columns:
        other = here.get(column.name.lower(), column.name)
        if other != column.name:
            change = f"RENAME COLUMN {shown(other)} TO {shown(column.name)}"
            yield _about(relation.name, column.name, f"is called {other} at the target", change, name)


def _has_twins(relation: Relation) -> bool:
    return len({column.name.lower() for column in relation.columns}) < len(relation.columns)


def _lacking(table: TargetTable, column: Column, name: str) -> Finding:
    """A column that only the source has: where only the target has another one, the source may have renamed that."""
    sent = {one.name for one in table.relation.columns}
    surplus = [one.name for one in table.columns.values() if one.name not in sent and not one.is_generated]
    addition = adding(column)
    found = _about(table.relation.name, column.name, "is missing at the target", addition, name)
    if not surplus:
        return found
    renaming = f"RENAME COLUMN {shown(surplus[0])} TO {shown(column.name)}"
    note = (
        f"The target alone has {', '.join(surplus)}. If that is the same column, which was renamed at one side: ALTER "
        f"TABLE {name} {renaming}. If {column.name} is another one: ALTER TABLE {name} {addition}."
    )
    return replace(found, fix=(), note=note)


def _unfit(where: str, column: Column, found: TargetColumn, error: Refused, name: str) -> Finding:
    one = shown(column.name)
    if not error.wanted:
        return replace(
            _about(where, column.name, str(error), "", name),
            fix=(),
            note="Give the source's column a type with one text for each value, such as numeric(20,4); or exclude it.",
        )
    made = f"{one} {error.wanted}{'' if found.is_nullable else ' NOT NULL'}"
    change = f"DROP COLUMN {one}, ADD COLUMN {made}" if found.is_generated else f"MODIFY COLUMN {made}"
    return _about(where, column.name, str(error), change, name)


def _about(where: str, column: str, what: str, change: str, name: str) -> Finding:
    found = _finding(where, f"{where}: column {column} {what}", f"ALTER TABLE {name} {change}")
    return replace(found, column=column)
