"""The database `parallel_apply`: its tables, made when a pipeline first needs them, dropped with the last one."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.protocol import TargetIdentity

TABLES: Final = ("pipeline", "position", "holder")
_LOCK: Final = "pa:schema"
_LOCK_SECONDS: Final = 30


def is_installed(session: Session) -> bool:
    """True if the tables are there; reads only. Errors: the pipeline's."""
    with session.errors("check"):
        return set(TABLES) <= _there(session)


def migrate(session: Session) -> tuple[str, ...]:
    """Make what is missing, one session at a time; says what it made. Errors: the pipeline's."""
    with session.errors("migrate"):
        if session.row("SELECT GET_LOCK(%s, %s)", [_LOCK, _LOCK_SECONDS]) != (1,):
            raise Unavailable("another session is making the target's tables")
        try:
            before = _there(session)
            if set(TABLES) <= before:
                return ()
            if not _has_database(session):
                session.execute(f"CREATE DATABASE {DATABASE}")
            for statement in files(__package__).joinpath("schema.sql").read_text("utf-8").split(";"):
                if statement.strip():
                    session.execute(statement)
        finally:
            session.execute("DO RELEASE_LOCK(%s)", [_LOCK])
    return tuple(f"table {DATABASE}.{table}" for table in TABLES if table not in before)


def read_identity(session: Session) -> TargetIdentity:
    """See `Target.identity`. Errors: the pipeline's."""
    with session.errors("check"):
        found = dict(session.rows("SHOW VARIABLES WHERE Variable_name IN ('server_uid', 'server_uuid', 'port')"))
        server = found.get("server_uid") or found.get("server_uuid") or session.address.host
    return TargetIdentity(server=f"{server}:{found['port']}", database=session.address.database)


def _there(session: Session) -> set[str]:
    found = session.rows("SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", [DATABASE])
    return {str(name) for (name,) in found}


def _has_database(session: Session) -> bool:
    query = "SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s"
    return session.row(query, [DATABASE]) is not None
