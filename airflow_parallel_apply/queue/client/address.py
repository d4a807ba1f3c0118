"""Where the service is, and what to show it: `grpc://127.0.0.1:7411`, `grpcs://:token@queue.example:7411?ca=/etc/ca.pem`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from airflow_parallel_apply.queue.model import QueueMisconfigured

PLAIN: Final = "grpc"
TLS: Final = "grpcs"

_HINT: Final = "Hint: Write grpc://host:port or grpcs://:token@host:port?ca=/path/of/the/authority.pem."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """`ca` None: the authorities of the system. Without TLS there is no encryption, which is for loopback."""

    target: str
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None

    @classmethod
    def parse(cls, url: str) -> ServiceAddress:
        """Errors: `QueueMisconfigured`; it never repeats the URL, which may hold a token."""
        try:
            parts = urlsplit(url)
            options = parse_qs(parts.query, strict_parsing=bool(parts.query))
            host, port = parts.hostname, parts.port
        except ValueError:
            raise QueueMisconfigured(f"the address of the queue's service cannot be read. {_HINT}") from None
        too_much = set(options) - {"ca"} or parts.path.strip("/") or parts.fragment
        if parts.scheme not in (PLAIN, TLS) or not host or port is None or too_much:
            raise QueueMisconfigured(f"the address of the queue's service is not complete or has too much. {_HINT}")
        if "ca" in options and parts.scheme != TLS:
            raise QueueMisconfigured(f"an authority is for {TLS}://. {_HINT}")
        return cls(
            target=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            tls=parts.scheme == TLS,
            token=unquote(parts.password) if parts.password else None,
            ca=Path(options["ca"][0]) if "ca" in options else None,
        )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def root_certificates(self) -> bytes | None:
        """Errors: `QueueMisconfigured`."""
        try:
            return None if self.ca is None else self.ca.read_bytes()
        except OSError as error:
            raise QueueMisconfigured(f"the authority of the queue's service cannot be read: {error}") from error
