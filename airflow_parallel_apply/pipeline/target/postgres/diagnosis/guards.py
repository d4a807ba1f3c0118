"""Triggers and rules of the target that act on applied rows, by name: they may turn a row away or change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

TRIGGER: Final = "trigger"
"""A kind of guard; the others are rules."""

INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"
TRUNCATE: Final = "truncate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A BEFORE trigger for each row, or a rule. `place`: the table that has it, as SQL; it may be a partition."""

    kind: str
    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def find_guards(
    connection: psycopg.Connection[Any],
    table: TargetTable,
    events: Sequence[str],
    *,
    as_replica: bool,
    also_after: bool = False,
) -> tuple[Guard, ...]:
    """Those that act on a change of the table's rows, also where it changes a partition. `also_after`: not only before
    a row is stored. Errors: psycopg's own.
    """
    cursor = connection.cursor(row_factory=class_row(Guard))
    cursor.execute(
        statement("guards", "find"),
        {
            "oid": table.oid,
            "events": list(events),
            "enabled": ["A", "R"] if as_replica else ["A", "O"],
            "also_after": also_after,
        },
    )
    return tuple(cursor)


def turned_away(
    connection: psycopg.Connection[Any], table: TargetTable, event: str, *, expected: int, found: int, as_replica: bool
) -> TargetError:
    """The error for rows that the target took without a word and did not change. Errors: psycopg's own."""
    guards = find_guards(connection, table, [event], as_replica=as_replica)
    text = f"of {expected} rows to {event} the target took {found}"
    names = ", ".join(f"the {guard}" for guard in guards) or "something"
    return TargetError(
        f"{text}: {names} of the target's table turns rows away",
        table=table.relation.name,
        hint=_hint(connection, guards, as_replica=as_replica),
    )


def changed_rows(connection: psycopg.Connection[Any], table: TargetTable, *, row: str, as_replica: bool) -> TargetError:
    """The error for rows that do not hold, after they were applied, what was applied. Errors: psycopg's own."""
    events = (INSERT, UPDATE, DELETE)
    guards = find_guards(connection, table, events, as_replica=as_replica, also_after=True)
    names = ", ".join(f"the {guard}" for guard in guards) or "something"
    return TargetError(
        f"{names} of the target's table changes what is applied{row}",
        table=table.relation.name,
        hint=_hint(connection, guards, as_replica=as_replica),
    )


def changed_others(
    connection: psycopg.Connection[Any],
    tables: Sequence[TargetTable],
    *,
    changed: str,
    other: str | None,
    as_replica: bool,
) -> TargetError:
    """The error for rows of a followed table, `changed`, that were written while changes of these tables were applied,
    and were not among them. `other`: the pipeline that brings that table's rows, if it is another one. Errors:
    psycopg's own.
    """
    events = (INSERT, UPDATE, DELETE, TRUNCATE)
    guards = [
        guard
        for table in tables
        for guard in find_guards(connection, table, events, as_replica=as_replica, also_after=True)
    ]
    names = ", ".join(f"the {guard} of {guard.place}" for guard in guards) or "something"
    whose, way_on = "", ""
    if other is not None:
        whose = f", whose rows pipeline {other} brings"
        way_on = f" Or, if that pipeline is no more: `parallel-apply drop --pipeline {other}`."
    return TargetError(
        f"{names} changes what is applied: it writes to {changed}{whose}",
        table=changed,
        hint=f"{_hint(connection, guards, as_replica=as_replica)}{way_on}",
    )


def require_no_acting_references(connection: psycopg.Connection[Any], tables: Sequence[TargetTable]) -> None:
    """In a replica's transaction, where foreign keys are taken to do nothing. Errors: `TargetError` that names those
    that would change rows which refer to these tables'; psycopg's own.
    """
    for table in tables:
        if table.references_act_as_replica:
            names, commands = keeping_references(connection, table)
            raise TargetError(
                f"foreign keys that refer to the target's table act on applied rows, since they were enabled for "
                f"replicas, too: {names}",
                table=table.relation.name,
                hint=f"Run {'; '.join(commands)} at the target, as a superuser; then run again. What the source's own "
                "keys do is sent.",
            )


def keeping_references(connection: psycopg.Connection[Any], table: TargetTable) -> tuple[str, tuple[str, ...]]:
    """Names of the foreign keys that act on a table's rows in a replica's transactions, and the statements that keep
    them from it. Errors: psycopg's own.
    """
    query = statement("guards", "acting_references")
    found = connection.execute(query, {"oids": [table.oid]}).fetchall()
    commands = (
        sql.SQL("ALTER TABLE {} ENABLE TRIGGER {}").format(sql.SQL(place), sql.Identifier(trigger))
        for place, trigger, _ in found
    )
    return ", ".join(sorted({name for *_, name in found})), tuple(one.as_string(connection) for one in commands)


def require_none_on_filling(
    connection: psycopg.Connection[Any], tables: Sequence[TargetTable], column: str, *, as_replica: bool
) -> None:
    """Before older rows are given what they have in a new column. Errors: `TargetError` that names the triggers and
    rules that would act on them; psycopg's own.
    """
    for table in tables:
        guards = find_guards(connection, table, [UPDATE], as_replica=as_replica, also_after=True)
        if guards:
            names = ", ".join(f"the {guard}" for guard in guards)
            raise TargetError(
                f"{names} of the target's table would act on older rows that get their value in a new column",
                table=table.relation.name,
                column=column,
                hint=_hint(connection, guards, as_replica=as_replica),
            )


def _hint(connection: psycopg.Connection[Any], guards: Sequence[Guard], *, as_replica: bool) -> str:
    """SQL that keeps the guards from applied rows."""
    if not guards:
        return (
            "Nothing that `parallel-apply check` knows does that. Look for rules and triggers at the target, and keep "
            "them from applied rows; then run again."
        )
    word = "ENABLE" if as_replica else "DISABLE"
    commands = "; ".join(
        sql.SQL("ALTER TABLE {} {} {} {}")
        .format(sql.SQL(guard.place), sql.SQL(word), sql.SQL(guard.kind.upper()), sql.Identifier(guard.name))
        .as_string(connection)
        for guard in guards
    )
    if as_replica:
        return f"Run {commands}; then it acts on other sessions' rows alone. Then run again."
    return f"Run {commands}; or let the role set session_replication_role. Then run again."
