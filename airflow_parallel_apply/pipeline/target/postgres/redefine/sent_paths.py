"""The search path that DDL was sent under: the target runs it under the same, or not at all. Also the meaning that
backslashes had in its strings, which must be set before the server reads the text.

A statement's names may mean the tables of any schema of the path. `SET` ignores a schema that does not exist, or that
the role may not use, and the names would then mean tables of the next schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.sent_ddl import PATH, SETTINGS, schemas_of, shown_ddl
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.steps import Statement
from airflow_parallel_apply.postgres.quoting import quoted

_ESCAPES: Final = "SET LOCAL standard_conforming_strings = 'off'"
_OUT_OF_PATH: Final = """
SELECT w.name, n.oid IS NOT NULL
FROM unnest(%s::text[]) WITH ORDINALITY AS w (name, number)
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = w.name
WHERE w.name <> ALL (pg_catalog.current_schemas(false)) AND w.name <> 'pg_temp'
ORDER BY w.number
"""


@contextmanager
def under_sent_path(connection: Connection, step: Statement) -> Iterator[None]:
    """Run the block under the statement's own path, in the caller's transaction; another one that it sets ends with it.
    One of an earlier version's messages, which tell none, runs under the session's.

    Errors: `TargetError` where a schema of the path is not there, or may not be used, neither before the statement,
    which may remove it, nor behind it; the block's own.
    """
    # Once a statement has failed, the server cannot be asked who acts.
    before, role = connection.execute("SELECT current_setting('search_path'), current_user").fetchone() or ("", "")
    found, settings = PATH.match(step.text), SETTINGS.match(step.text)
    if settings and _ESCAPES in settings[0]:
        connection.execute(_ESCAPES)
    lacking = _set(connection, found["path"]) if found else {}
    try:
        yield
    except psycopg.Error as error:
        if lacking:
            raise _refused(role, step, lacking) from error
        raise
    if found and lacking:
        still = _set(connection, found["path"])
        lacking = {name: is_there for name, is_there in lacking.items() if name in still}
    connection.execute("SELECT set_config('search_path', %s, false)", [before])
    if lacking:
        raise _refused(role, step, lacking)


def _set(connection: Connection, path: str) -> dict[str, bool]:
    """Set the path for the transaction; the schemas that are not in force, with whether each is there."""
    wanted = schemas_of(path)
    connection.execute("SELECT set_config('search_path', %s, true)", [path])
    return {str(name): bool(is_there) for name, is_there in connection.execute(_OUT_OF_PATH, [wanted])}


def _refused(role: str, step: Statement, lacking: dict[str, bool]) -> TargetError:
    commands = [
        f"GRANT USAGE ON SCHEMA {quoted(name)} TO {quoted(role)}" if is_there else f"CREATE SCHEMA {quoted(name)}"
        for name, is_there in lacking.items()
    ]
    told = " and ".join(
        f"{name} may not be used" if is_there else f"{name} is not there" for name, is_there in lacking.items()
    )
    return TargetError(
        f"the source sent DDL under a search_path of which the target's schema {told}, so its names may mean other "
        f"tables: {shown_ddl(step.text)}",
        op="ddl",
        hint=f"Run {'; '.join(commands)} at the target, then run again. A schema made for this may stay empty.",
    )
