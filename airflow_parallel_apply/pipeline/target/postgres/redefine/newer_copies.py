"""DDL that was sent before a table was copied anew, and would be run on the copy: `leaving_newer_copies`.

A copy has the rows and columns of a later moment, and so has what the statement did. A statement's text does not show
what it does, so it is run, and then the locks show what it touched: if that is a copy, the transaction is rolled back.
Who gives a type another name locks no table of it. So the copy's columns may not lose the types that the source's have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sent_ddl import shown_ddl
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.steps import Statement


@contextmanager
def leaving_newer_copies(
    connection: Connection, session: Session, statement: Statement, definitions: Iterable[Relation]
) -> Iterator[None]:
    """Around the statement. `definitions`: all that the log has, the oldest first. Errors: `PlanError` that rolls it
    back where it changed a table that was copied from a later moment; psycopg's own.
    """
    before = newer_copies(connection, session, statement.end_offset)
    if not before:
        yield
        return
    oids = [oid for found in before.values() for oid in found]
    locked, types = _locked(connection, oids), _types(connection, oids)
    yield
    after = newer_copies(connection, session, statement.end_offset)
    fresh = {oid for oid, _ in _locked(connection, oids) - locked}
    now = _types(connection, oids)
    lost = {one for one, type_name in types.items() if now.get(one) != type_name}
    last = {relation.name: relation for relation in definitions} if lost else {}
    touched = [
        name
        for name, found in before.items()
        if after.get(name) != found
        or fresh.intersection(found)
        or any(
            types.get((oid, column.name)) == column.type_name and (oid, column.name) in lost
            for column in (last[name].columns if name in last else ())
            for oid in found
        )
    ]
    if touched:
        raise PlanError(
            f"the source sent this DDL before {', '.join(touched)} was copied anew, and it would change the copy, "
            f"which is of a later moment: {shown_ddl(statement.text)}",
            op="ddl",
            pipeline=session.pipeline,
            table=touched[0],
            hint="Do at the target by hand what the statement is to do there beside that, if anything; then "
            f"{statement.skipping}.",
        )


def newer_copies(connection: Connection, session: Session, offset: Offset) -> dict[str, list[int]]:
    """The tables that were copied anew from a moment behind the offset, with the oids of what holds their rows."""
    found = connection.execute(statement("recopied", "newer"), {"pipeline": session.pipeline, "offset": offset})
    return dict(found.fetchall())


def _locked(connection: Connection, oids: Iterable[int]) -> set[tuple[int, str]]:
    found = connection.execute(statement("recopied", "locked"), {"oids": [*oids]})
    return {(oid, mode) for oid, mode in found}


def _types(connection: Connection, oids: Iterable[int]) -> dict[tuple[int, str], str]:
    """The types of these relations' columns, as a definition has them, where users have made these."""
    with without_search_path(connection):
        found = connection.execute(statement("recopied", "types"), {"oids": [*oids]}).fetchall()
    return {(oid, column): type_name for oid, column, type_name in found}
