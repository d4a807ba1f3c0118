"""Refuses DDL that was sent where its names mean other tables or columns here than at the source.

The target follows a rename that was not sent with the next row. DDL that is sent before that row meets what has the
name here by then: it would drop another column than the source dropped, or give other values to another one. The
source's event trigger tells of each change of a definition; so what it shows as it was has not been altered there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import command_line, listed
from airflow_parallel_apply.pipeline.model.sent_ddl import shown_ddl
from airflow_parallel_apply.pipeline.model.sighting import Sighting
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import renaming
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name, renaming_statements
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Statement

_RENAMES: Final = re.compile("rename", re.IGNORECASE)


class _Column(NamedTuple):
    """A column here. `type_id`: with the modifier. `version`: changes with whatever is done to it."""

    name: str
    type_name: str
    type_id: tuple[int, int]
    version: int


@dataclass(frozen=True, slots=True)
class _Table:
    """A table here, with the columns that it has for those of the source's, by their numbers there. `files`: of its
    rows.
    """

    name: Name
    files: Sequence[int]
    columns: dict[int, _Column]


_Tables: TypeAlias = Mapping[int, _Table]
"""By the oids of the source's."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The source's table behind a statement, as far as it is known. `seen`: what its event trigger told last; `later`:
    its next definition whose columns are others. `is_renamed`: it has, or gets, another name than here.
    """

    seen: Sighting | None
    later: Relation | None
    is_renamed: bool

    @property
    def names(self) -> Mapping[int, str]:
        """The names of its columns, by number."""
        if self.later is not None:
            return {column.number: column.name for column in self.later.columns if column.number is not None}
        return dict(self.seen.names) if self.seen is not None else {}


@contextmanager
def refusing_namesakes(
    connection: Connection, session: Session, relations: Relations, step: Statement, *, last_seqno: int
) -> Iterator[None]:
    """Around the statement, in its transaction. `last_seqno`: the unit's. Errors: `PlanError` where it alters what the
    source has as it was, or may have under another name; psycopg's own.
    """
    before = _tables(connection, session)
    yield
    after = _tables(connection, session)
    if before == after:
        return
    seen = {one.oid: one for one in relations.sightings() if one.names}
    definitions = relations.definitions()
    names = {one.oid: (one.schema, one.table) for one in definitions}
    for oid, table in before.items():
        later = _later(definitions, oid, last_seqno)
        known = _Known(seen.get(oid), later, is_renamed=names.get(oid, table.name) != table.name)
        now = after.get(oid)
        if now is None and later is None:
            # It is dropped, and may be there.
            continue
        met = [
            column.name
            for number, column in table.columns.items()
            if _is_left(number, table, now, known, step) and not _is_made_anew(connection, session, oid, column, now)
        ]
        if met:
            first = _renames(table, known, definitions, last_seqno)
            hint = f"Do at the target by hand what the statement is to do there; then {step.skipping}."
            if first:
                hint = f"Run {first} at the target, then run again. Or: {hint}"
            raise _refused(session, step, table, met, hint)
        doubted = [
            column.name for number, column in table.columns.items() if _may_be_other(number, table, now, known, step)
        ]
        if doubted:
            copying = command_line("recopy", [".".join(names.get(oid, table.name))])
            hint = f"`{copying}` copies the table anew; then {step.skipping}."
            raise _refused(session, step, table, doubted, hint)


def _later(definitions: Sequence[Relation], oid: int, last_seqno: int) -> Relation | None:
    """The first definition of a table behind a seqno whose columns are others than before: what a renaming brings has
    those that were known.
    """
    own = [one for one in definitions if one.oid == oid]
    return next(
        (
            new
            for old, new in pairwise(own)
            if (new.first_seqno or 0) > last_seqno and _numbered(new) != _numbered(old) and new.is_numbered
        ),
        None,
    )


def _numbered(relation: Relation) -> dict[int | None, tuple[str, str]]:
    return {column.number: (column.name, column.type_name) for column in relation.columns}


def _is_left(number: int, before: _Table, after: _Table | None, known: _Known, step: Statement) -> bool:
    """True if the column is dropped, retyped or rewritten here, and the source had it as it was behind the statement. A
    column never gets its number back; all else may have been changed since by what was seen later.
    """
    column, now = before.columns[number], None if after is None else after.columns.get(number)
    if now is None or after is None:
        return number in known.names
    seen = known.seen
    if now == column or seen is None or not known.is_renamed:
        return False
    if now.type_id != column.type_id:
        return seen.offset <= step.end_offset and dict(seen.types).get(number) == column.type_name
    return seen.offset <= step.after_offset and after.files != before.files


def _is_made_anew(connection: Connection, session: Session, oid: int, column: _Column, after: _Table | None) -> bool:
    """True if the statement has dropped the column, and made one of its name: then it has done what it was to do in
    another way than at the source. Errors: psycopg's own.
    """
    if after is not None and any(one.name == column.name for one in after.columns.values()):
        return False
    names = {"pipeline": session.pipeline, "source_oid": oid, "column": column.name}
    return connection.execute(statement("applied_tables", "has_column"), names).fetchone() == (True,)


def _may_be_other(number: int, before: _Table, after: _Table | None, known: _Known, step: Statement) -> bool:
    """True if the column is retyped or rewritten here, and its name is another one's at the source, which may have been
    passed on before.
    """
    column, now = before.columns[number], None if after is None else after.columns.get(number)
    if now is None or after is None or now == column:
        return False
    is_rewritten = now.type_id != column.type_id or after.files != before.files
    is_passed_on = any(name == column.name and other != number for other, name in known.names.items())
    is_told = any(_RENAMES.search(text) for text in (step.text, *step.beside))
    return is_rewritten and is_passed_on and not is_told


def _refused(session: Session, step: Statement, table: _Table, columns: Sequence[str], hint: str) -> PlanError:
    name = ".".join(table.name)
    return PlanError(
        f"the source sent DDL that would alter {listed(columns)} of {name} here, and altered something else there: "
        "names were passed on before, which the target follows with the next row, or the statement was sent before it "
        f"was run: {shown_ddl(step.text)}",
        op="ddl",
        pipeline=session.pipeline,
        table=name,
        column=columns[0],
        hint=hint,
    )


def _renames(table: _Table, known: _Known, definitions: Sequence[Relation], last_seqno: int) -> str:
    """The statements that give the table, or its columns, the names that they have at the source, as far as these are
    known.
    """
    later = (one.renaming for one in definitions if one.renaming is not None and (one.first_seqno or 0) > last_seqno)
    told = next((one for one in later if table.name in {old for old, _ in one.pairs}), None)
    statements = [] if told is None else renaming_statements(told)
    names = known.names
    own = {number: column.name for number, column in table.columns.items()}
    wanted = {name: names[number] for number, name in own.items() if names.get(number, name) != name}
    free = [name for name in wanted if name not in wanted.values()]
    for number, name in own.items():
        if number not in names and name in wanted.values() and free:
            wanted[name] = free.pop()
    pairs = [(table.name, name, new) for name, new in wanted.items()]
    statements = [*statements, *renaming(pairs, [*own.values()])]
    return "; ".join(one.as_string(None) for one in statements)


def _tables(connection: Connection, session: Session) -> _Tables:
    with without_search_path(connection):
        found = connection.execute(statement("applied_tables", "columns"), {"pipeline": session.pipeline}).fetchall()
    tables: dict[int, _Table] = {}
    for oid, schema, name, files, number, column, type_name, type_oid, modifier, version in found:
        table = tables.setdefault(oid, _Table((schema, name), files, {}))
        table.columns[number] = _Column(column, type_name, (type_oid, modifier), version)
    return tables
