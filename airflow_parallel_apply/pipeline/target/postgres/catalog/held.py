"""Tables that a transaction writes by their names: those of the same names at its end, or nothing is committed.

A lock keeps a table as it is. It does not keep its schema's name (ALTER SCHEMA … RENAME), and rows that come later go
to what has the name by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named


def note_held(connection: psycopg.Connection[Any], relations: Sequence[Relation]) -> None:
    """Note the tables of these names, once they are locked. Errors: psycopg's own."""
    names = named((found.schema, found.table) for found in relations)
    connection.execute(statement("held", "note"), names)


def require_held(connection: psycopg.Connection[Any]) -> None:
    """Require that the noted tables have their names still: behind the last row that is written by name. Errors:
    `Unavailable`; psycopg's own.
    """
    found = connection.execute(statement("held", "renamed")).fetchone()
    if found is not None:
        raise Unavailable(
            "somebody renamed the table or its schema at the target while rows were written",
            table=".".join(found),
            hint="None of these rows is committed. Try again: the next try takes the table that has the name by then, "
            "or says where it is.",
        )


def forget_held(connection: psycopg.Connection[Any]) -> None:
    """Forget what is noted: from here on, this transaction renames tables. Errors: psycopg's own."""
    connection.execute("SET LOCAL parallel_apply.held = ''")
