"""Airflow connections, resolved by type: databases to an `Endpoint`, Spark to a Connect URL or the embedded server.

Errors: `ConfigurationError`, which names the parameter, the connection, its type and what is needed. Nothing here
opens a connection, so a mistyped one is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn
from urllib.parse import quote

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError

POSTGRES: Final = "postgres"
DATABASE_TYPE: Final = "parallel_apply"
"""Our own connection type: the same fields, with a form that says what they are for."""

SPARK_CONNECT: Final = "spark_connect"

# Extras of the connection type that its own hook reads and libpq does not know.
_NOT_FOR_LIBPQ: Final = frozenset(
    {
        "aws_conn_id",
        "azure_conn_id",
        "azure_oauth_scope",
        "cluster-identifier",
        "cursor",
        "iam",
        "redshift",
        "redshift-serverless",
        "sqlalchemy_query",
        "sqlalchemy_scheme",
        "workgroup-name",
    }
)
_DEFAULT_CONNECT_PORT: Final = 15002


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEndpoint:
    """Where Spark is. `url` None: the embedded local server of the worker's host."""

    conn_id: str
    url: str | None = field(repr=False)
    """`sc://host:port/;…`, with the token where there is one: a secret, kept out of every text form."""


EMBEDDED_SPARK: Final = SparkEndpoint(conn_id="", url=None)


def database(conn_id: str, *, parameter: str) -> Endpoint:
    """The database behind a connection of type postgres. `parameter` is named in errors.

    Blocks: a trigger calls it in a thread (`asyncio.to_thread`), which works in the triggerer and under `dag.test()`.
    """
    return database_of(_connection(conn_id, parameter), parameter=parameter)


def spark(conn_id: str) -> SparkEndpoint:
    """The Spark behind `spark_conn_id`; empty: the embedded one."""
    if not conn_id:
        return EMBEDDED_SPARK
    return spark_of(_connection(conn_id, "spark_conn_id"))


def database_of(connection: Connection, *, parameter: str) -> Endpoint:
    """A libpq connection string from host, port, login, password, schema and the extras that libpq knows."""
    from psycopg.conninfo import make_conninfo

    if connection.conn_type not in (POSTGRES, DATABASE_TYPE):
        raise _wrong_type(connection, parameter, f"type {POSTGRES} (postgresql://user@host:port/database)")
    extras = _extras(connection, parameter)
    if extras.get("iam"):
        raise ConfigurationError(
            f"{parameter}: connection {connection.conn_id!r} asks for IAM authentication, which is not supported",
            hint="Use a login with a password, a certificate (sslcert, sslkey) or a passfile.",
        )
    values: dict[str, object] = {
        "host": connection.host,
        "port": connection.port,
        "user": connection.login,
        "password": connection.password,
        "dbname": connection.schema,
        **{name: value for name, value in extras.items() if name not in _NOT_FOR_LIBPQ},
    }
    _refuse_unknown(connection, parameter, values)
    present = {name: str(value) for name, value in values.items() if value not in (None, "")}
    if "dbname" not in present:
        raise ConfigurationError(
            f"{parameter}: connection {connection.conn_id!r} names no database",
            hint="Set its schema (the field Database), as in postgresql://user@host:port/database.",
        )
    return Endpoint(conn_id=connection.conn_id, dsn=make_conninfo(**present))


def spark_of(connection: Connection) -> SparkEndpoint:
    """A Spark Connect URL without a session id, which each run brings itself."""
    if connection.conn_type != SPARK_CONNECT:
        raise _wrong_type(
            connection, "spark_conn_id", f"type {SPARK_CONNECT} (a Spark Connect server), or no connection at all"
        )
    extras = _extras(connection, "spark_conn_id")
    host = (connection.host or "").removeprefix("sc://").rstrip("/")
    if not host or "/" in host:
        raise ConfigurationError(
            f"spark_conn_id: connection {connection.conn_id!r} has no usable host",
            hint=f"Set its host to the Spark Connect server's name and its port ({_DEFAULT_CONNECT_PORT}).",
        )
    parameters = {"user_id": connection.login, "token": connection.password, "use_ssl": extras.get("use_ssl")}
    # A slash would end the URL's parameters for Spark's parser.
    text = ";".join(
        f"{name}={quote(_word(value), safe='')}" for name, value in parameters.items() if value not in (None, "")
    )
    address = host if ":" in host else f"{host}:{connection.port or _DEFAULT_CONNECT_PORT}"
    return SparkEndpoint(conn_id=connection.conn_id, url=f"sc://{address}/;{text}" if text else f"sc://{address}")


def _connection(conn_id: str, parameter: str) -> Connection:
    if not conn_id:
        raise ConfigurationError(f"{parameter} is empty", hint=f"Name a connection of type {POSTGRES}.")
    try:
        return BaseHook.get_connection(conn_id)
    except (AirflowNotFoundException, AirflowRuntimeError) as error:
        _missing(conn_id, parameter, error)


def _missing(conn_id: str, parameter: str, error: Exception) -> NoReturn:
    raise ConfigurationError(
        f"{parameter}: connection {conn_id!r} cannot be read: {str(error).splitlines()[0]}",
        hint=f"Create it (Admin, Connections) or set AIRFLOW_CONN_{conn_id.upper()}.",
    ) from error


def _extras(connection: Connection, parameter: str) -> Mapping[str, object]:
    try:
        extras: Mapping[str, object] = connection.extra_dejson
    except ValueError as error:
        raise ConfigurationError(
            f"{parameter}: the extra of connection {connection.conn_id!r} is not JSON", hint="Correct or empty it."
        ) from error
    return extras


def _refuse_unknown(connection: Connection, parameter: str, values: Mapping[str, object]) -> None:
    """As libpq does, which would name the option, but not the connection it comes from."""
    from psycopg import pq

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ConfigurationError(
            f"{parameter}: connection {connection.conn_id!r} has extras that libpq does not know: {', '.join(unknown)}",
            hint="Correct their names (sslmode, sslrootcert, connect_timeout, options, …) or remove them.",
        )


def _wrong_type(connection: Connection, parameter: str, needs: str) -> ConfigurationError:
    return ConfigurationError(
        f"{parameter}: connection {connection.conn_id!r} has type {connection.conn_type!r}, which does not fit",
        hint=f"It needs {needs}.",
    )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
