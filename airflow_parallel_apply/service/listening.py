"""Listening for a service: address, TLS, token, ready file. Beyond loopback only with TLS and a token."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from airflow_parallel_apply.service.address import PLAIN, TLS, is_loopback, split_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The address to serve at, and its safety. Errors: `ValueError` for an address that is malformed, or that needs TLS
    and a token.
    """

    listen: str = "127.0.0.1:0"
    ready_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """Callers must show a certificate that this authority signed."""
    token: str | None = field(default=None, repr=False)
    metrics_listen: str | None = None

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("TLS needs a certificate and its key")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("certificates of callers are asked for with TLS only")
        if self.token is not None and (not self.token or not self.token.isascii() or not self.token.isprintable()):
            raise ValueError("a token is printable ASCII, and not empty")
        for address in filter(None, (self.listen, self.metrics_listen)):
            host, _ = split_address(address)
            if not is_loopback(host) and (self.tls_certificate is None or self.token is None):
                raise ValueError(
                    f"{address} can be reached from elsewhere, so it needs TLS and a token. Hint: Give --tls-cert, "
                    "--tls-key and --token-file, or listen on 127.0.0.1."
                )

    @property
    def scheme(self) -> str:
        """The scheme of the service's URL."""
        return PLAIN if self.tls_certificate is None else TLS

    def tls_context(self) -> ssl.SSLContext | None:
        """For sockets of Python's own; None without TLS. Errors: `ValueError` for files that cannot be used."""
        if self.tls_certificate is None:
            return None
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.tls_client_ca)
        except OSError as error:
            raise ValueError(f"the authority {self.tls_client_ca} cannot be used: {error}") from error
        try:
            context.load_cert_chain(self.tls_certificate, self.tls_key)
        except OSError as error:
            raise ValueError(
                f"the certificate {self.tls_certificate} with the key {self.tls_key} cannot be used: {error}"
            ) from error
        if self.tls_client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def say_ready(self, ready: dict[str, object]) -> None:
        """Write the file, whole or not at all: whoever waits for it reads where to connect. Errors: `ValueError`."""
        if self.ready_file is None:
            return
        aside = self.ready_file.with_name(self.ready_file.name + ".new")
        try:
            aside.write_text(json.dumps(ready) + "\n")
            aside.replace(self.ready_file)
        except OSError as error:
            raise ValueError(f"the ready file cannot be written: {error}") from error

    def say_ended(self) -> None:
        """Remove the file."""
        if self.ready_file is not None:
            self.ready_file.unlink(missing_ok=True)


def read_token(path: Path) -> str:
    """The token in a file. Errors: `ValueError`."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the token cannot be read: {error}") from error
