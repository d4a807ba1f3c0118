"""The URL of a service behind a connection, checked as its client will, with errors that name the connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn
from urllib.parse import quote

from airflow.sdk import Connection

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.service.address import PLAIN, TLS, is_loopback

_EXTRAS: Final = frozenset({"ca", "cert", "key"})
"""Files that the service's client reads, wherever it runs."""


@dataclass(frozen=True, slots=True)
class Service:
    """A kind of service, for people. `carries`: what would be open to the network without TLS."""

    name: str
    carries: str


QUEUE_SERVICE: Final = Service("a queue's service", "token and tasks")
ROUTER_SERVICE: Final = Service("a router", "token and rows")


def service_url(
    connection: Connection, parameter: str, service: Service, protocol: str, extras: Mapping[str, object]
) -> str:
    """`grpcs://:token@host:port?ca=FILE`. Errors: `ConfigurationError`."""

    def refuse(what: str, hint: str) -> NoReturn:
        raise ConfigurationError(f"{parameter}: connection {connection.conn_id!r} {what}", hint=hint)

    unknown = sorted(extras.keys() - _EXTRAS)
    if unknown:
        refuse(
            f"has extras that {service.name} does not take: {', '.join(unknown)}",
            f"Remove them; known are protocol, {', '.join(sorted(_EXTRAS))}.",
        )
    if connection.login or connection.schema:
        refuse(f"has a login or a database, which {service.name} does not take", "Empty both; the token is enough.")
    host = (connection.host or "").strip("[]")
    if not host or "/" in host or "@" in host or connection.port is None:
        refuse("has no usable host and port", "Set its host to the service's name, and its port.")
    if protocol == PLAIN and not is_loopback(host):
        refuse(
            f"speaks {protocol} to {host}: {service.carries} would be open to the network",
            f"Set its protocol to {TLS}; without TLS the service is for its own host.",
        )
    if protocol == PLAIN and extras:
        refuse("has files of TLS and speaks without it", f"Set its protocol to {TLS}.")
    secret = f":{quote(connection.password, safe='')}@" if connection.password else ""
    address = f"[{host}]" if ":" in host else host
    options = "&".join(f"{name}={quote(str(value), safe='/')}" for name, value in sorted(extras.items()))
    return f"{protocol}://{secret}{address}:{connection.port}" + (f"?{options}" if options else "")
