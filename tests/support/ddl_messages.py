"""DDL messages as a source's users send them."""

from __future__ import annotations

from psycopg import sql

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.source.open import install_ddl_capture_at


def install(dsn: str) -> None:
    """Let this database's DDL messages prove themselves; again does no harm."""
    install_ddl_capture_at(Endpoint(conn_id="source", url=dsn))


def ddl(text: str) -> str:
    """The statement that sends it."""
    return f"SELECT parallel_apply.send_ddl({sql.Literal(text).as_string()})"
