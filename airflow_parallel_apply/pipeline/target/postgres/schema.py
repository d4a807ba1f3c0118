"""The pipeline's own tables in the target, created and upgraded under an advisory lock."""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.protocol import TargetIdentity
from airflow_parallel_apply.postgres.quoting import quoted

VERSION: Final = 19
"""Version of the tables in the schema; each version has a statement `upgrade_<version>`."""


def is_installed(session: Session) -> bool:
    """True if the tables are there; reads only."""
    with session.errors("read schema"):
        row = session.connection().execute(statement("schema", "exists"), {"schema": SCHEMA}).fetchone()
        return bool(row and row[1])


def read_identity(session: Session) -> TargetIdentity:
    """Read which server and database the session is on."""
    with session.errors("identify"):
        row = session.connection().execute(statement("schema", "identity")).fetchone()
    if row is None:
        raise Unavailable("the database did not describe itself", op="identify")
    return TargetIdentity(server=row[0], database=row[1])


def migrate(session: Session) -> tuple[str, ...]:
    """Bring the schema to `VERSION`; says what it made. Errors: `ConfigurationError` without the right to it, or when a
    newer release was here.
    """
    made: list[str] = []
    with session.transaction("migrate") as connection:
        connection.execute(statement("schema", "lock"))
        row = connection.execute(statement("schema", "exists"), {"schema": SCHEMA}).fetchone()
        has_schema, has_version, may_create, database, role = row or (False, False, False, "", "")
        if not has_schema:
            if not may_create:
                raise ConfigurationError(
                    f"role {role} may not create the schema {SCHEMA} in database {database}",
                    hint=f"Run GRANT CREATE ON DATABASE {quoted(database)} TO {quoted(role)} at the target, or create "
                    f"the schema with {role} as owner; then run again.",
                )
            connection.execute(statement("schema", "create_schema"))
            made.append(f"created the schema {SCHEMA} in the database {database}")
        if not has_version:
            connection.execute(statement("schema", "create_version"))
        found = connection.execute(statement("schema", "version")).fetchone()
        current = found[0] if found else 0
        if current > VERSION:
            raise ConfigurationError(
                f"the schema {SCHEMA} has version {current}, this release knows {VERSION}",
                hint="Install the release that made it, or a newer one.",
            )
        for version in range(current + 1, VERSION + 1):
            connection.execute(statement("schema", f"upgrade_{version}"))
            connection.execute(statement("schema", "add_version"), {"version": version})
        if current < VERSION:
            made.append(f"brought the tables in the schema {SCHEMA} to version {VERSION}")
    return tuple(made)
