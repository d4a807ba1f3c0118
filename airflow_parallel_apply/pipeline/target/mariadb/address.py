"""A target's URL, and the places that it gives to the source's tables.

::

    mariadb://user:password@host:3306/database?source_schema=public&ssl_ca=/path/ca.pem

A schema of the source is a database here, by the same name. The one that the option `source_schema` names (`public`,
unless told) is the URL's own database.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.change import Relation

_PORT: Final = 3306
_SCHEMA: Final = "public"
_OPTIONS: Final = ("source_schema", "computed_alike", "ssl_ca", "ssl_cert", "ssl_key", "unix_socket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed URL. `source_schema`: the one of which the tables lie in `database`. `computed_alike`: columns, as
    schema.table.column, that somebody says both sides compute alike.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    source_schema: str
    computed_alike: frozenset[str] = frozenset()
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    unix_socket: str = ""

    @property
    def connecting(self) -> dict[str, Any]:
        """The parameters of the driver. With a CA the server's name and certificate are verified."""
        found: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "database": self.database,
        }
        if self.ssl_ca:
            found |= {"ssl_ca": self.ssl_ca, "ssl_verify_cert": True, "ssl_verify_identity": True}
        if self.ssl_cert:
            found |= {"ssl_cert": self.ssl_cert, "ssl_key": self.ssl_key or None}
        if self.unix_socket:
            found["unix_socket"] = self.unix_socket
        return found

    def place(self, relation: Relation) -> tuple[str, str]:
        """Database and table of a table of the source."""
        return self.place_of(relation.schema, relation.table)

    def place_of(self, schema: str, table: str) -> tuple[str, str]:
        """The same, by its names."""
        return (self.database if schema == self.source_schema else schema), table


def parse_address(url: str) -> Address:
    """Errors: `ConfigurationError`, which never quotes the URL: it has a password."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    unknown = sorted(set(options).difference(_OPTIONS))
    database = unquote(parts.path.removeprefix("/"))
    try:
        port = parts.port or _PORT
    except ValueError:
        unknown = ["the port"]
        port = 0
    if unknown or not database or "/" in database:
        raise ConfigurationError(
            f"the target's address is not usable: {', '.join(unknown) or 'it names no database'}",
            op="open",
            hint=f"Use mariadb://user:password@host:{_PORT}/database, with options {', '.join(_OPTIONS)}.",
        )
    return Address(
        host=parts.hostname or "localhost",
        port=port,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=database,
        source_schema=options.pop("source_schema", _SCHEMA),
        computed_alike=frozenset(name.strip() for name in options.pop("computed_alike", "").split(",")),
        **options,
    )
