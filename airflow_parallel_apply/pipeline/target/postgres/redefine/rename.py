"""Give tables of the target the names that the source's have taken, or say what a person has to do."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Relation, Renaming
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import (
    Name,
    existing,
    free_name,
    renaming_one,
    renaming_statements,
)
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import note_tables, present_name
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import find_columns
from airflow_parallel_apply.pipeline.target.postgres.redefine.newer_copies import newer_copies
from airflow_parallel_apply.pipeline.target.postgres.redefine.told_renames import was_told
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.skipping import SKIPPING
from airflow_parallel_apply.postgres.filled import filled


def rename(
    connection: Connection,
    session: Session,
    older: Relation,
    newer: Relation,
    *,
    ddl: DdlPolicy,
    end_offset: Offset | None = None,
) -> bool:
    """Rename tables as the newer definition's renaming says, unless the target has done so already, by a DDL message or
    by hand. The table that had the rows so far shows it; where that is not known, the columns may show it of tables
    that exchanged their names, or nothing does. SKIP takes it as done where all names are there, but for an exchange
    that is known not to be done; APPLY does it where that is known, or where no message can have.

    False if there is no such table: one that was copied anew from a moment behind `end_offset` is not the one that was
    renamed, whose rows went with the copy. Errors: `PlanError`.
    """
    renaming = newer.renaming
    if renaming is None or newer.name == older.name:
        return True
    old, new = [before for before, _ in renaming.pairs], [after for _, after in renaming.pairs]
    if end_offset is not None and newer_copies(connection, session, end_offset).keys() & {".".join(one) for one in old}:
        note_tables(connection, session, [_without_columns(newer)], is_certain=True)
        return bool(existing(connection, [(newer.schema, newer.table)]))
    left, taken = set(old) - set(new), set(new) - set(old)
    there = existing(connection, {*old, *new})
    if left and taken <= there and not left & there:
        return True
    name = newer.schema, newer.table
    if {*new} <= there and was_told(connection, session, renaming.pairs):
        return True
    known = present_name(connection, session, newer)
    if known == name:
        return True
    if known is not None and len(old) == 1 and not left & there:
        # A message, or a person, has given it another name since.
        renaming = replace(renaming, pairs=((known, name),))
        old, left, there = [known], {known}, there | {known}
    is_undone, is_exchange = known == (older.schema, older.table), not left
    if is_exchange and not is_undone and name not in there and {*new} - {name} <= there:
        # It was archived under the other name, and what has its name now is not there yet.
        return True
    is_done = False if is_undone else _is_exchanged(connection, older, newer) if is_exchange else None
    if is_done:
        return True
    # Without rows either may be the one that was renamed: the columns of both are compared with their definitions.
    is_either = {*old, *new} <= there and not is_exchange and _have_rows(connection, renaming) == [False, False]
    is_vouched = ddl is DdlPolicy.SKIP and {*new} <= there and not (is_exchange and is_undone)
    if is_vouched or is_either:
        note_tables(connection, session, [_without_columns(newer)], is_certain=True)
        return True
    is_possible = {*old} <= there and not taken & there
    if ddl is not DdlPolicy.APPLY or not is_possible or (is_exchange and not renaming.is_certain and is_done is None):
        missing = {*old} - there
        raise _left(connection, newer, renaming, in_the_way=taken & there, missing=missing, is_undone=is_undone)
    for statement in renaming_statements(renaming):
        connection.execute(statement)
    return True


def _without_columns(relation: Relation) -> Relation:
    """Those are followed behind the name."""
    return replace(relation, columns=())


def _is_exchanged(connection: Connection, older: Relation, newer: Relation) -> bool | None:
    """True if the target's table of the new name has exactly the definition's columns, and the one of the old name has
    others; False if it is the other way round; None if they do not tell, as where one of them is not there.
    """
    wanted = {(column.name, column.type_name) for column in newer.columns}

    def fits(relation: Relation) -> bool | None:
        columns = find_columns(connection, relation)
        return wanted == {(name, column.type_name) for name, column in columns.items()} if columns else None

    under_new, under_old = fits(newer), fits(replace(newer, schema=older.schema, table=older.table))
    return None if under_new is under_old or None in (under_new, under_old) else under_new


def _have_rows(connection: Connection, renaming: Renaming) -> list[bool] | None:
    """Whether the tables of the former and of the new name have rows; None of more than two, or where the role may not
    look.
    """
    if len(renaming.pairs) != 1:
        return None
    tables = [sql.SQL("ONLY {}").format(sql.Identifier(*name)) for name in renaming.pairs[0]]
    with suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
        return [*filled(connection, tables)]
    return None


def _left(
    connection: Connection,
    newer: Relation,
    renaming: Renaming,
    *,
    in_the_way: set[Name],
    missing: set[Name],
    is_undone: bool,
) -> PlanError:
    at_source = newer.renaming or renaming
    what = ", ".join(f"{'.'.join(old)} became {'.'.join(new)}" for old, new in at_source.pairs)
    if missing:
        # Of what is there: another one that has its name now is to be made.
        renaming = replace(renaming, pairs=tuple(pair for pair in renaming.pairs if pair[0] not in missing))
    aside = [renaming_one(name, free_name(connection, name))[0] for name in sorted(in_the_way)]
    text = "; ".join(statement.as_string(connection) for statement in (*aside, *renaming_statements(renaming)))
    others = ", ".join(".".join(name) for name in sorted(in_the_way))
    lost = f" What the target lacks nobody can rename: {recopying(newer)}" if missing else ""
    trouble = f", and the target lacks {', '.join('.'.join(name) for name in sorted(missing))}" if missing else ""
    names = {name for pair in renaming.pairs for name in pair}
    is_exchange = len(names) == len(renaming.pairs)
    after, done, first = "run again", "", ""
    if is_exchange and not is_undone:
        after = SKIPPING
        done = f" If they were exchanged there before, by DDL messages, only {SKIPPING}."
    elif in_the_way and not missing:
        done = "" if is_undone else f" If {others} is that table, renamed there before, only {SKIPPING}."
        if _have_rows(connection, renaming) == [False, True]:
            # As if the former one had been renamed already.
            former = ".".join(renaming.pairs[0][0])
            first = f"Only {others} has rows, and {former} may have been made since: if so, {SKIPPING}. "
            first, done = first + "Otherwise: ", ""
    return PlanError(
        f"tables were renamed at the source: {what}, which the target has not followed{trouble}"
        + (f", and it has other tables of these names: {others}" if others else ""),
        table=newer.name,
        hint=lost.strip()
        if not renaming.pairs
        else f"{first}Rename them at the target ({text}), then {after}: everything before is applied. With ddl=apply "
        f"the pipeline does it where it can tell that nobody has.{done}{lost}",
    )
