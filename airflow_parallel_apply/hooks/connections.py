"""Airflow connections, resolved by type: databases to an `Endpoint`, Spark to a Connect URL, a cluster's master, or the
embedded server, queues to a `QueueEndpoint`.

Errors: `ConfigurationError`, which names the parameter, the connection, its type and what is needed; `Unavailable`
while Airflow's API server fails. Nothing here opens a connection, so a mistyped one is refused before anything starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from airflow.sdk import Connection

from airflow_parallel_apply.hooks import target_connections
from airflow_parallel_apply.hooks.lookup import stored_connection
from airflow_parallel_apply.hooks.service_url import QUEUE_SERVICE, ROUTER_SERVICE, service_url
from airflow_parallel_apply.pipeline.config import Endpoint, QueueEndpoint, RouterEndpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.service.address import PLAIN, TLS
from airflow_parallel_apply.spark.cluster import Cluster
from airflow_parallel_apply.spark.endpoint import EMBEDDED_SPARK, SparkEndpoint

POSTGRES: Final = "postgres"
DATABASE_TYPE: Final = "parallel_apply"
"""Our own connection type: the same fields, with a form that says what they are for."""
QUEUE_TYPE: Final = "parallel_apply_queue"
"""Our connection type of queues, behind a service or in PostgreSQL: its extra `protocol` says which."""

ROUTER_TYPE: Final = "parallel_apply_router"
"""Our connection type of routers."""


class QueueProtocol(StrEnum):
    """The protocol of a connection of `QUEUE_TYPE`."""

    GRPCS = "grpcs"
    GRPC = "grpc"
    POSTGRESQL = "postgresql"


class SparkType(StrEnum):
    """Connection types of Spark."""

    CONNECT = "spark_connect"
    CLUSTER = "spark"


_SPARK_EXTRAS: Final[Mapping[str, str]] = {
    "queue": "spark.yarn.queue",
    "namespace": "spark.kubernetes.namespace",
    "principal": "spark.kerberos.principal",
    "keytab": "spark.kerberos.keytab",
}
"""Extras that the Spark provider knows, and the settings that they stand for."""

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


def database(conn_id: str, *, parameter: str) -> Endpoint:
    """The database behind a connection of type postgres. `parameter` is named in errors.

    Blocks: a trigger calls it in a thread (`asyncio.to_thread`), which works in the triggerer and under `dag.test()`.
    """
    return database_of(stored_connection(conn_id, parameter), parameter=parameter)


def target(conn_id: str, ledger_conn_id: str, *, parameter: str = "target_conn_id") -> Endpoint:
    """The database to apply to, with its ledger where one is named. Blocks, as `database` does."""
    connection = stored_connection(conn_id, parameter)
    found = database_of(connection, parameter=parameter)
    if ledger_conn_id:
        return replace(found, ledger=database(ledger_conn_id, parameter="ledger_conn_id"))
    if target_connections.scheme_of_type(connection.conn_type) is not None:
        raise ConfigurationError(
            f"ledger_conn_id is empty, and a target of type {connection.conn_type!r} has no place for a ledger",
            hint=f"Name a connection of type {POSTGRES}: its database keeps who owns the pipeline, and its plan.",
        )
    return found


def spark(conn_id: str) -> SparkEndpoint:
    """The Spark behind `spark_conn_id`; empty: the embedded one."""
    if not conn_id:
        return EMBEDDED_SPARK
    return spark_of(stored_connection(conn_id, "spark_conn_id"))


def queue(conn_id: str, *, parameter: str) -> QueueEndpoint:
    """The queue behind a connection. Blocks, as `database` does."""
    return queue_of(stored_connection(conn_id, parameter), parameter=parameter)


def pipeline_queue(conn_id: str) -> QueueEndpoint | None:
    """That of a pipeline; empty: the one in its target's database."""
    return queue(conn_id, parameter="queue") if conn_id else None


def pipeline_router(conn_id: str, *, parameter: str = "router_conn_id") -> RouterEndpoint | None:
    """The router behind a connection; empty: the embedded one of the host. Blocks, as `database` does."""
    return router_of(stored_connection(conn_id, parameter), parameter=parameter) if conn_id else None


def database_of(connection: Connection, *, parameter: str) -> Endpoint:
    """A libpq connection string from host, port, login, password, schema and the extras that libpq knows; of one of
    our other targets its URL; of a type that an installed package has a source or a target for, its URI.
    """
    if connection.conn_type not in (POSTGRES, DATABASE_TYPE):
        scheme = target_connections.scheme_of_type(connection.conn_type)
        if scheme is not None:
            url = target_connections.url_of(connection, scheme, _extras(connection, parameter), parameter=parameter)
            return Endpoint(conn_id=connection.conn_id, url=url)
        if _is_installed(connection.conn_type):
            return Endpoint(conn_id=connection.conn_id, url=connection.get_uri())
        raise _wrong_type(connection, parameter, f"type {POSTGRES} (postgresql://user@host:port/database)")
    return Endpoint(conn_id=connection.conn_id, url=_libpq(connection, parameter, _extras(connection, parameter)))


def queue_of(connection: Connection, *, parameter: str) -> QueueEndpoint:
    """By its type, and, of our own type, by its protocol."""
    if connection.conn_type in (POSTGRES, DATABASE_TYPE):
        dsn = database_of(connection, parameter=parameter).url
    elif connection.conn_type == QUEUE_TYPE:
        extras = _extras(connection, parameter)
        protocol = extras.pop("protocol", None)
        match protocol:
            case QueueProtocol.POSTGRESQL:
                dsn = _libpq(connection, parameter, extras)
            case QueueProtocol.GRPC | QueueProtocol.GRPCS:
                dsn = service_url(connection, parameter, QUEUE_SERVICE, str(protocol), extras)
            case _:
                raise ConfigurationError(
                    f"{parameter}: connection {connection.conn_id!r} says protocol {protocol!r}, which is none",
                    hint=f"Set its extra protocol to {', '.join(QueueProtocol)}.",
                )
    else:
        raise _wrong_type(connection, parameter, f"type {QUEUE_TYPE}, or type {POSTGRES}")
    return QueueEndpoint(conn_id=connection.conn_id, dsn=dsn)


def router_of(connection: Connection, *, parameter: str) -> RouterEndpoint:
    """Its URL, with the token."""
    if connection.conn_type != ROUTER_TYPE:
        raise _wrong_type(connection, parameter, f"type {ROUTER_TYPE}")
    extras = _extras(connection, parameter)
    protocol = str(extras.pop("protocol", TLS))
    if protocol not in (PLAIN, TLS):
        raise ConfigurationError(
            f"{parameter}: connection {connection.conn_id!r} says protocol {protocol!r}, which is none",
            hint=f"Set its extra protocol to {TLS} or {PLAIN}.",
        )
    url = service_url(connection, parameter, ROUTER_SERVICE, protocol, extras)
    return RouterEndpoint(conn_id=connection.conn_id, url=url)


def _libpq(connection: Connection, parameter: str, extras: Mapping[str, object]) -> str:
    from psycopg.conninfo import make_conninfo

    if _word(extras.get("iam")).lower() == "true":
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
    # A service file may name it.
    if not {"dbname", "service"} & present.keys():
        raise ConfigurationError(
            f"{parameter}: connection {connection.conn_id!r} names no database",
            hint="Set its schema (the field Database), as in postgresql://user@host:port/database; or extra service.",
        )
    return make_conninfo(**present)


def spark_of(connection: Connection) -> SparkEndpoint:
    """By its type: what a mistyped host means is for nobody to guess."""
    match connection.conn_type:
        case SparkType.CONNECT:
            return SparkEndpoint(conn_id=connection.conn_id, url=_connect_url(connection))
        case SparkType.CLUSTER:
            return SparkEndpoint(conn_id=connection.conn_id, cluster=_cluster(connection))
    raise _wrong_type(
        connection,
        "spark_conn_id",
        f"type {SparkType.CONNECT} (a Spark Connect server), type {SparkType.CLUSTER} (a cluster's master), "
        "or no connection at all",
    )


def _connect_url(connection: Connection) -> str:
    """The URL without a session id, which each run brings itself."""
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
    return f"sc://{address}/;{text}" if text else f"sc://{address}"


def _cluster(connection: Connection) -> Cluster:
    """The master from host and port as the Spark provider writes them; `host` alone with a port is a standalone one."""
    extras = _extras(connection, "spark_conn_id")
    unknown = sorted(extras.keys() - {"conf", "deploy-mode", *_SPARK_EXTRAS})
    if unknown:
        raise ConfigurationError(
            f"spark_conn_id: connection {connection.conn_id!r} has extras that are not used: {', '.join(unknown)}",
            hint=f"Remove them; known are conf, {', '.join(_SPARK_EXTRAS)}.",
        )
    if extras.get("deploy-mode", "client") != "client":
        raise ConfigurationError(
            f"spark_conn_id: connection {connection.conn_id!r} has deploy-mode {extras['deploy-mode']!r}",
            hint="Remove it: the driver of a lane runs beside its Airflow task.",
        )
    settings = {name: _word(value) for name, value in _spark_settings(connection, extras.get("conf")).items()}
    settings |= {setting: _word(extras[name]) for name, setting in _SPARK_EXTRAS.items() if name in extras}
    host = (connection.host or "").rstrip("/")
    has_scheme = "://" in host
    master = f"{host}:{connection.port}" if connection.port else host
    try:
        return Cluster(master=master if has_scheme or not connection.port else f"spark://{master}", settings=settings)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"spark_conn_id: connection {connection.conn_id!r} has type '{SparkType.CLUSTER}', and {error.message}",
            hint=f"{error.hint} A Spark Connect server is a connection of type {SparkType.CONNECT}.",
        ) from None


def _spark_settings(connection: Connection, conf: object) -> Mapping[str, object]:
    if conf is None:
        return {}
    reserved = ("spark.master", "spark.submit.deployMode")
    if not isinstance(conf, Mapping) or not all(
        str(name).startswith("spark.") and name not in reserved for name in conf
    ):
        raise ConfigurationError(
            f"spark_conn_id: connection {connection.conn_id!r} has an extra conf that is not usable",
            hint='It looks like {"conf": {"spark.executor.memory": "2g"}}, without master and deploy mode.',
        )
    return conf


def _extras(connection: Connection, parameter: str) -> dict[str, object]:
    """Those that have a value: a form gives what it leaves empty as well."""
    try:
        found = json.loads(connection.extra or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        # Airflow would go on without it: without TLS, say.
        raise ConfigurationError(
            f"{parameter}: the extra of connection {connection.conn_id!r} is no JSON object",
            hint='Correct or empty it. It looks like {"sslmode": "require"}.',
        )
    # Which also keeps secrets out of logs.
    extras: Mapping[str, object] = connection.extra_dejson
    return {name: value for name, value in extras.items() if value not in (None, "")}


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


def _is_installed(conn_type: str | None) -> bool:
    """True if another package brings a source or a target for connections of this type."""
    # Late: the rooms import the log, and that Arrow.
    from airflow_parallel_apply.pipeline.source.open import SOURCES
    from airflow_parallel_apply.pipeline.target.open import TARGETS

    scheme = (conn_type or "").replace("_", "-")
    return any(scheme in schemes.known() and scheme not in schemes.ours for schemes in (SOURCES, TARGETS))


def _wrong_type(connection: Connection, parameter: str, needs: str) -> ConfigurationError:
    return ConfigurationError(
        f"{parameter}: connection {connection.conn_id!r} has type {connection.conn_type!r}, which does not fit",
        hint=f"It needs {needs}.",
    )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
