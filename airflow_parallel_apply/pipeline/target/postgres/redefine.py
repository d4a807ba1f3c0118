"""Bring a table of the target to a newer definition of the source's, or say what a person has to do.

What the target has already is skipped, be it by a DDL message or by hand, so this may run any number of times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.event import Column, Relation
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.redefinition import ColumnChange, compare_definitions


@dataclass(frozen=True, slots=True)
class _Alteration:
    """What is to be done for one column, for people and for the server."""

    column: str
    what: str
    statements: tuple[sql.Composed, ...]
    is_certain: bool = True


def follow(connection: Connection, session: Session, old: Relation, new: Relation, *, ddl: DdlPolicy) -> None:
    """Under SKIP, what cannot be told from what was done by hand is taken for it.

    Errors: `PlanError` that names table and column, where something is left and may not or cannot be done here.
    """
    found = compare_definitions(old, new)
    columns = _columns(connection, session, new)
    is_there = all(columns.get(column.name) == column.type_name for column in new.columns)
    if found.uncertain:
        if not is_there:
            raise _unclear(new, found.uncertain)
        return
    if is_there and _shows(found.changes, new, columns, is_trusted=ddl is DdlPolicy.SKIP):
        return
    for change in found.changes:
        alteration = _alteration(connection, new, columns, change)
        if alteration is None:
            continue
        if ddl is not DdlPolicy.APPLY or not alteration.is_certain:
            raise _left(connection, new, alteration)
        try:
            for statement in alteration.statements:
                connection.execute(statement)
        except psycopg.errors.DatatypeMismatch as error:
            raise _left(connection, new, alteration) from error
        columns = _columns(connection, session, new)


def _shows(
    changes: Sequence[ColumnChange], relation: Relation, columns: Mapping[str, str], *, is_trusted: bool
) -> bool:
    """Whether a table that has the new columns cannot be one that has the old ones: each former name is gone, or is
    that of a new column of another type.
    """
    types = {column.name: column.type_name for column in relation.columns}
    for change in changes:
        old, new = change.old, change.new
        if old is None or (new is not None and new.name == old.name) or old.name not in columns:
            continue
        if old.name not in types or (types[old.name] == old.type_name and not is_trusted):
            return False
    return True


def _columns(connection: Connection, session: Session, relation: Relation) -> Mapping[str, str]:
    path = connection.execute("SELECT current_setting('search_path'), set_config('search_path', '', true)").fetchone()
    found = connection.execute(
        session.sql("redefine", "columns"), {"schema": relation.schema, "table": relation.table}
    ).fetchall()
    connection.execute("SELECT set_config('search_path', %s, true)", [path[0] if path else ""])
    return {str(name): str(type_name) for name, type_name in found}


def _alteration(
    connection: Connection, relation: Relation, columns: Mapping[str, str], change: ColumnChange
) -> _Alteration | None:
    """None where the target has it already, or has chosen a type of its own."""
    table = sql.SQL("ALTER TABLE {} ").format(sql.Identifier(relation.schema, relation.table))
    old, new = change.old, change.new
    if new is None:
        if old is None or old.name not in columns:
            return None
        drop = table + sql.SQL("DROP COLUMN {}").format(sql.Identifier(old.name))
        return _Alteration(old.name, "was dropped", (drop,))
    if old is None:
        return None if new.name in columns else _addition(connection, relation, table, new)
    return _alteration_of_one(table, columns, old, new)


def _alteration_of_one(table: sql.Composed, columns: Mapping[str, str], old: Column, new: Column) -> _Alteration | None:
    what, statements, is_certain = [], [], True
    if old.name != new.name and old.name in columns:
        what.append(f"was renamed to {new.name}")
        # With both names there the renaming may have been done: to names that were swapped.
        is_certain = new.name not in columns
        names = sql.Identifier(old.name), sql.Identifier(new.name)
        statements.append(table + sql.SQL("RENAME COLUMN {} TO {}").format(*names))
    has = columns.get(old.name if what else new.name)
    if old.type_name != new.type_name and has == old.type_name:
        what.append(f"became {new.type_name}")
        retype = sql.SQL("ALTER COLUMN {} TYPE {}").format(sql.Identifier(new.name), sql.SQL(new.type_name))
        statements.append(table + retype)
    return _Alteration(old.name, " and ".join(what), tuple(statements), is_certain) if what else None


def _addition(connection: Connection, relation: Relation, table: sql.Composed, column: Column) -> _Alteration:
    """Rows older than the column get what they have at the source. Later ones bring their values."""
    name, type_name = sql.Identifier(column.name), sql.SQL(column.type_name)
    what = f"was added as {column.type_name}"
    if column.fill == "NULL":
        return _Alteration(column.name, what, (table + sql.SQL("ADD COLUMN {} {}").format(name, type_name),))
    if column.fill is not None:
        fill = sql.SQL("ADD COLUMN {} {} DEFAULT {}::{}").format(name, type_name, sql.SQL(column.fill), type_name)
        forget = sql.SQL("ALTER COLUMN {} DROP DEFAULT").format(name)
        return _Alteration(column.name, what, (table + fill, table + forget))
    rows = connection.execute(
        sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(relation.schema, relation.table))
    ).fetchone()
    return _Alteration(
        column.name,
        what + ", with a value of its own for each row",
        (table + sql.SQL("ADD COLUMN {} {}").format(name, type_name),),
        is_certain=rows is not None and not rows[0],
    )


def _left(connection: Connection, relation: Relation, alteration: _Alteration) -> PlanError:
    text = "; ".join(statement.as_string(connection) for statement in alteration.statements)
    return PlanError(
        f"at the source the column {alteration.column} of {relation.name} {alteration.what}, not so at the target",
        table=relation.name,
        column=alteration.column,
        hint=f"Change the target so that its rows are the source's ({text}), then run again: everything before is "
        "applied. With ddl=apply the pipeline does what the log tells for certain, with ddl=skip it takes it as done.",
    )


def _unclear(relation: Relation, columns: tuple[Column, ...]) -> PlanError:
    names = ", ".join(dict.fromkeys(column.name for column in columns))
    return PlanError(
        f"columns of {relation.name} changed at the source, and the log does not tell whether they were renamed, or "
        f"dropped and added: {names}",
        table=relation.name,
        column=columns[-1].name,
        hint="Change the target's table as the source's was, then run again: everything before is applied.",
    )
