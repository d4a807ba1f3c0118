"""Addresses of services, credentials included: `grpc://127.0.0.1:7411`, `grpcs://:token@host:7411?ca=/etc/ca.pem`."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

PLAIN: Final = "grpc"
TLS: Final = "grpcs"

_SCHEMES: Final = (f"{PLAIN}://", f"{TLS}://")
_FILES: Final = frozenset({"ca", "cert", "key"})
"""PEM files that the query names."""


class AddressError(ValueError):
    """An address that cannot be used; never repeats the URL, which may hold a token."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}. Hint: {hint}")
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The service at an address, for people. `name`: with its article. `carries`: what would be open to the network
    without TLS. `path`: what its path names; empty where it has none.
    """

    name: str
    carries: str
    path: str = ""

    @property
    def hint(self) -> str:
        """The form that addresses have."""
        end = f"/{self.path}" if self.path else ""
        return f"Write grpc://host:port{end} or grpcs://:token@host:port{end}?ca=/path/of/the/authority.pem."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """`ca` None: the authorities of the system. `cert`, `key`: what the caller shows where the service asks for it.
    Without TLS there is no encryption, which is for loopback. `path`: without slashes around it.
    """

    target: str
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    path: str = ""

    @classmethod
    def parse(cls, url: str, served: Served) -> ServiceAddress:
        """Errors: `AddressError`."""
        try:
            parts = urlsplit(url)
            options = parse_qs(parts.query, strict_parsing=bool(parts.query))
            host, port = parts.hostname, parts.port
        except ValueError:
            raise AddressError(f"the address of {served.name} cannot be read", served.hint) from None
        path = unquote(parts.path.strip("/"))
        too_much = options.keys() - _FILES or bool(path) != bool(served.path) or parts.fragment
        if parts.scheme not in (PLAIN, TLS) or not host or port is None or too_much:
            raise AddressError(f"the address of {served.name} is not complete or has too much", served.hint)
        if parts.scheme == PLAIN and not is_loopback(host):
            raise AddressError(
                f"the address of {served.name} is {PLAIN}://, without TLS, and {host} is another host: "
                f"{served.carries} would be open to the network",
                f"Write {TLS}://.",
            )
        if options and parts.scheme != TLS:
            raise AddressError(f"an authority and certificates are for {TLS}://", served.hint)
        if ("cert" in options) != ("key" in options):
            raise AddressError(
                "a certificate of the caller needs its key, and the key its certificate",
                served.hint,
            )
        return cls(
            target=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            tls=parts.scheme == TLS,
            token=unquote(parts.password) if parts.password else None,
            path=path,
            **{name: Path(values[0]) for name, values in options.items()},
        )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that goes with each call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    @property
    def place(self) -> str:
        """The address for people: without secrets."""
        path = f"/{quote(self.path)}" if self.path else ""
        return f"{TLS if self.tls else PLAIN}://{self.target}{path}"

    def url(self, *, with_token: bool, with_path: bool = True) -> str:
        """The URL that gives this address back."""
        token = f":{quote(self.token, safe='')}@" if self.token is not None and with_token else ""
        path = f"/{quote(self.path)}" if self.path and with_path else ""
        files = {"ca": self.ca, "cert": self.cert, "key": self.key}
        query = "&".join(f"{name}={quote(str(file), safe='/')}" for name, file in files.items() if file is not None)
        return f"{TLS if self.tls else PLAIN}://{token}{self.target}{path}" + (f"?{query}" if query else "")

    def certificates(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Authority, the caller's key, its certificate chain. Errors: `OSError`."""
        authority, key, chain = (None if file is None else file.read_bytes() for file in (self.ca, self.key, self.cert))
        return authority, key, chain


def is_service(url: str) -> bool:
    """True if a URL is that of a service, by its scheme."""
    return url.startswith(_SCHEMES)


def is_loopback(host: str) -> bool:
    """True if `host` (an IPv6 address without brackets) is this machine, reached through its loopback interface."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, with brackets around an IPv6 host. Errors: `ValueError`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"an address is host:port, not {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
