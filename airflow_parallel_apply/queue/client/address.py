"""Addresses of the service, credentials included: `grpc://127.0.0.1:7411`, `grpcs://:token@host:7411?ca=/etc/ca.pem`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from airflow_parallel_apply.queue.model import QueueMisconfigured
from airflow_parallel_apply.queue.open import is_loopback

PLAIN: Final = "grpc"
TLS: Final = "grpcs"

_FILES: Final = frozenset({"ca", "cert", "key"})
"""PEM files that the query names."""

_HINT: Final = "Hint: Write grpc://host:port or grpcs://:token@host:port?ca=/path/of/the/authority.pem."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """`ca` None: the authorities of the system. `cert`, `key`: what the caller shows where the service asks for it.
    Without TLS there is no encryption, which is for loopback.
    """

    target: str
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def parse(cls, url: str) -> ServiceAddress:
        """Errors: `QueueMisconfigured`; it never repeats the URL, which may hold a token."""
        try:
            parts = urlsplit(url)
            options = parse_qs(parts.query, strict_parsing=bool(parts.query))
            host, port = parts.hostname, parts.port
        except ValueError:
            raise QueueMisconfigured(f"the address of the queue's service cannot be read. {_HINT}") from None
        too_much = options.keys() - _FILES or parts.path.strip("/") or parts.fragment
        if parts.scheme not in (PLAIN, TLS) or not host or port is None or too_much:
            raise QueueMisconfigured(f"the address of the queue's service is not complete or has too much. {_HINT}")
        if parts.scheme == PLAIN and not is_loopback(host):
            raise QueueMisconfigured(
                f"the address of the queue's service is {PLAIN}://, without TLS, and {host} is another host: token "
                f"and tasks would be open to the network. Hint: Write {TLS}://."
            )
        if options and parts.scheme != TLS:
            raise QueueMisconfigured(f"an authority and certificates are for {TLS}://. {_HINT}")
        if ("cert" in options) != ("key" in options):
            raise QueueMisconfigured(f"a certificate of the caller needs its key, and the key its certificate. {_HINT}")
        return cls(
            target=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            tls=parts.scheme == TLS,
            token=unquote(parts.password) if parts.password else None,
            **{name: Path(values[0]) for name, values in options.items()},
        )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata that goes with each call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def certificates(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Authority, the caller's key, its certificate chain. Errors: `QueueMisconfigured`."""
        try:
            authority, key, chain = (
                None if file is None else file.read_bytes() for file in (self.ca, self.key, self.cert)
            )
        except OSError as error:
            raise QueueMisconfigured(f"a certificate for the queue's service cannot be read: {error}") from error
        return authority, key, chain
