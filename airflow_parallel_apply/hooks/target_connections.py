"""Connections to our targets that are no PostgreSQL, each of a type of its own: `parallel_apply_<scheme>`.

One rule makes a URL of all of them, which the target's connector reads::

    host s3://lake/shop, login KEY, extra {"format": "avro"}   ──▶  files+s3://KEY@lake/shop?format=avro
    host db.example, port 3306, schema shop                    ──▶  mariadb://db.example:3306/shop
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from airflow_parallel_apply.pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection

_PREFIX: Final = "parallel_apply_"


def scheme_of_type(conn_type: str | None) -> str | None:
    """The scheme of the target that a connection type is for; None where it is for something else."""
    # Late: the rooms import the log, and that Arrow.
    from airflow_parallel_apply.pipeline.open import POSTGRESQL
    from airflow_parallel_apply.pipeline.target.open import TARGETS

    if conn_type is None or not conn_type.startswith(_PREFIX):
        return None
    scheme = conn_type.removeprefix(_PREFIX).replace("_", "-")
    return scheme if scheme in TARGETS.ours and scheme != POSTGRESQL else None


def url_of(connection: Connection, scheme: str, extras: Mapping[str, object], *, parameter: str) -> str:
    """The target's URL, with its secrets. Errors: `ConfigurationError` for a connection without a host."""
    if not connection.host:
        raise ConfigurationError(
            f"{parameter}: connection {connection.conn_id!r} says no place", hint="Set its host, as its form says."
        )
    protocol, has_protocol, rest = connection.host.rpartition("://")
    server, slash, path = rest.partition("/")
    if _is_ipv6(server):
        server = f"[{server}]"
    if connection.port:
        server = f"{server}:{connection.port}"
    if connection.schema:
        slash, path = "/", f"{path.rstrip('/')}/{connection.schema}" if path else quote(connection.schema)
    login, password = (quote(value or "", safe="") for value in (connection.login, connection.password))
    user = f"{login}:{password}@" if password else f"{login}@" if login else ""
    options = urlencode({name: _word(value) for name, value in extras.items() if value not in (None, "")})
    return (
        f"{f'{scheme}+{protocol}' if has_protocol else scheme}://{user}{server}{slash}{path}"
        f"{f'?{options}' if options else ''}"
    )


def _is_ipv6(server: str) -> bool:
    """True for an address without the brackets that it needs in a URL."""
    try:
        IPv6Address(server)
    except ValueError:
        return False
    return True


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
