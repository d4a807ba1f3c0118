"""The embedded Spark: one Spark Connect server for a user of a host, there while somebody uses it.

`pipeline.embedded` says how it begins and ends. The JVM dies with its supervisor (the kernel sees to it), Spark's
Python workers with the JVM (end of their input).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.embedded import lease as leases
from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.spark.java import find_java
from airflow_parallel_apply.spark.layout import ServerSettings, ServerState, server_layout, server_state

_NAME: Final = "the embedded Spark server"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLease:
    """The right to a running server. `url` carries a secret: never log it."""

    state: ServerState

    @property
    def url(self) -> str:
        return self.state.url

    @property
    def ui_url(self) -> str:
        """Spark's own pages, on loopback."""
        return self.state.ui_url


@contextmanager
def connect_server(*, settings: ServerSettings | None = None, directory: Path | None = None) -> Iterator[ServerLease]:
    """Hold a lease on the embedded server, started here if nobody has. The settings of whoever starts it count.

    Errors: `ConfigurationError` without a usable Java, `Unavailable` with the log's tail when it does not start.
    """
    chosen = settings or ServerSettings.from_environment()
    layout = server_layout(directory)

    def before() -> None:
        find_java()
        layout.write_configuration(chosen)

    server = leases.Embedded(
        name=_NAME,
        op="spark",
        layout=layout,
        module="airflow_parallel_apply.spark.supervisor",
        arguments=[str(chosen.idle.total_seconds())],
        start_timeout=chosen.start_timeout,
        before=before,
    )
    with leases.hold_server(server) as values:
        state = server_state(values)
        if state is None:
            raise Unavailable(f"{_NAME} is not one of this version", op="spark", hint=f"See {layout.log}.")
        yield ServerLease(state=state)


def stop_server(*, directory: Path | None = None, timeout: timedelta = timedelta(seconds=20)) -> bool:
    """Stop this user's server now, whoever uses it. False when none was running. `Unavailable` if it does not end."""
    return leases.stop_server(server_layout(directory), name=_NAME, op="spark", timeout=timeout)
