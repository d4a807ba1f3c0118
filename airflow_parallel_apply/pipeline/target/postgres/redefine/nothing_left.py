"""DDL of which nothing is left to do at the target: `unless_done`.

A new table that has rows before a run sees it is copied, and the copy has what was sent about the table until then: the
CREATE TABLE itself, its indexes and comments, each ALTER TABLE. At their places in the log they find it done. So do
those that make an enum which copies alone use: it was made for them, as the source had it then.

What drops something that has no rows, as an index or a constraint, may find nothing, since the target need not have it;
what adds a label to an enum may find it, since a person made it for rows that came before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import psycopg

from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name
from airflow_parallel_apply.pipeline.target.postgres.redefine.concerned import (
    Kind,
    concerned,
    is_drop_without_rows,
    is_new_label,
)
from airflow_parallel_apply.pipeline.target.postgres.redefine.namesakes import noted_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.newer_copies import leaving_newer_copies
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.steps import Statement
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.arrays import named

_logger = logging.getLogger(__name__)

_NOT_THERE: Final = (sqlstate.UNDEFINED_OBJECT, sqlstate.UNDEFINED_FUNCTION)
_THERE: Final = (sqlstate.DUPLICATE_OBJECT,)


def unless_done(
    connection: Connection,
    session: Session,
    step: Statement,
    definitions: Iterable[Relation],
    *,
    run: Callable[[], None],
) -> None:
    """Run the statement, or pass over it where it is about tables that were copied from a later moment, and about
    nothing else, and where it would change them or is refused; or where it only drops something that has no rows and
    is not there, or adds a label that is. `definitions`: all that the log has. Errors: as `run`; psycopg's own.
    """
    tables = _only_copies(connection, session, step, definitions)
    done = _NOT_THERE if is_drop_without_rows(step.text) else _THERE if is_new_label(step.text) else ()
    if not (tables or done):
        run()
        return
    try:
        with connection.transaction(), leaving_newer_copies(connection, session, step, definitions):
            run()
    except FatalError as error:
        if tables:
            since = f", since {listed(sorted(map('.'.join, tables)))} was copied anew behind it"
        elif isinstance(error.__cause__, psycopg.Error) and error.__cause__.sqlstate in done:
            since = ""
        else:
            raise
        _logger.warning("DDL was passed over, of which nothing is left to do%s: %s", since, error.message)


def _only_copies(
    connection: Connection, session: Session, step: Statement, definitions: Iterable[Relation]
) -> frozenset[Name]:
    """The tables that the statement is about, if each is such a copy and known to have the rows of whatever table of
    the source had the name in between; else none.
    """
    tables = frozenset[Name]()
    for kind, name in concerned(step.text):
        found = {name} if kind is Kind.TABLE else _users(connection, name)
        if not found or None in found:
            return frozenset()
        tables |= {one for one in found if one}
    values = {"pipeline": session.pipeline, "offset": step.end_offset, **named(tables)}
    if not tables or tables != {*connection.execute(statement("recopied", "alone"), values).fetchall()}:
        return frozenset()
    had = {one.oid for one in definitions if one.oid is not None and (one.schema, one.table) in tables}
    had |= {one.oid for one in step.names if one.table in tables}
    return tables if tables == {one.name for one in noted_tables(connection, session, had).values()} else frozenset()


def _users(connection: Connection, name: Name) -> set[Name | None]:
    """The tables that use a type; None beside them for any other use."""
    found = connection.execute(statement("recopied", "users"), {"schema": name[0], "name": name[1]})
    return {None if table is None else (schema, table) for schema, table in found.fetchall()}
