"""DDL that was sent before a table was copied anew, and that its copy has done: `unless_done_by_copies`.

A new table that has rows before a run sees it is copied, and the copy has what was sent about the table until then: the
CREATE TABLE itself, its indexes and comments, each ALTER TABLE. At their places in the log they find it done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name
from airflow_parallel_apply.pipeline.target.postgres.redefine.concerned_tables import concerned_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.namesakes import noted_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.newer_copies import leaving_newer_copies
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.steps import Statement
from airflow_parallel_apply.postgres.arrays import named

_logger = logging.getLogger(__name__)


def unless_done_by_copies(
    connection: Connection,
    session: Session,
    step: Statement,
    definitions: Iterable[Relation],
    *,
    run: Callable[[], None],
) -> None:
    """Run the statement, or pass over it where it is about tables that were copied from a later moment, and about
    nothing else, and where it would change them or is refused. `definitions`: all that the log has. Errors: as `run`;
    psycopg's own.
    """
    tables = _only_copies(connection, session, step, definitions)
    if not tables:
        run()
        return
    try:
        with connection.transaction(), leaving_newer_copies(connection, session, step):
            run()
    except FatalError as error:
        _logger.warning(
            "DDL was passed over that was sent before %s was copied anew, and of which nothing is left to do: %s",
            listed(sorted(map(".".join, tables))),
            error.message,
        )


def _only_copies(
    connection: Connection, session: Session, step: Statement, definitions: Iterable[Relation]
) -> frozenset[Name]:
    """The tables that the statement is about, if each is such a copy and known to have the rows of whatever table of
    the source had the name in between; else none.
    """
    tables = concerned_tables(step.text) or frozenset()
    values = {"pipeline": session.pipeline, "offset": step.end_offset, **named(tables)}
    if not tables or tables != {*connection.execute(statement("recopied", "alone"), values).fetchall()}:
        return frozenset()
    had = {one.oid for one in definitions if one.oid is not None and (one.schema, one.table) in tables}
    had |= {one.oid for one in step.names if one.table in tables}
    return tables if tables == {one.name for one in noted_tables(connection, session, had).values()} else frozenset()
