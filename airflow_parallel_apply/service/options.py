"""The options of commands that serve: where, how safely, and what tells that they do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Listen = Annotated[str, typer.Option(help="host:port; port 0: any free one.")]
ReadyFile = Annotated[
    Path | None, typer.Option(help="File written once it serves: address, url, pid, metrics_port as JSON.")
]
TlsCertificate = Annotated[Path | None, typer.Option("--tls-cert", help="Certificate chain, PEM.")]
TlsKey = Annotated[Path | None, typer.Option(help="Its key, PEM.")]
TlsClientCa = Annotated[
    Path | None, typer.Option(help="PEM: callers must show a certificate that this authority signed.")
]
TokenFile = Annotated[Path | None, typer.Option(help="File with the token that callers must show.")]
MetricsListen = Annotated[
    str | None, typer.Option("--metrics", help="host:port of Prometheus metrics.", show_default="none")
]
