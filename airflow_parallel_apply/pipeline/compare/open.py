"""Opening a side of a comparison by its endpoint's scheme, and by whether the other side is of the same kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from airflow_parallel_apply.pipeline.compare.protocol import ComparedRows, ComparedSide
from airflow_parallel_apply.pipeline.compare.typed import TypedSide
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.schemes import Schemes

SIDES: Final = Schemes(
    thing="comparison",
    group="airflow_parallel_apply.comparisons",
    ours={POSTGRESQL: "airflow_parallel_apply.pipeline.compare.postgres.side:open_postgres_side"},
)

ROWS: Final = Schemes(
    thing="comparison with another kind",
    group="airflow_parallel_apply.compared_rows",
    ours={
        POSTGRESQL: "airflow_parallel_apply.pipeline.compare.postgres.rows:open_postgres_rows",
        "delta": "airflow_parallel_apply.pipeline.compare.delta.rows:open_delta_rows",
        "mariadb": "airflow_parallel_apply.pipeline.compare.mariadb.rows:open_mariadb_rows",
        "mysql": "airflow_parallel_apply.pipeline.compare.mariadb.rows:open_mariadb_rows",
        "kafka": "airflow_parallel_apply.pipeline.compare.kafka.rows:open_kafka_rows",
        "files": "airflow_parallel_apply.pipeline.compare.files.rows:open_files_rows",
    },
)


@contextmanager
def open_side(endpoint: Endpoint, name: str, *, other: Endpoint) -> Iterator[ComparedSide]:
    """A session of its own; `name`: what people call the side; `other`: what it is compared with. Errors:
    `Unavailable`, `ConfigurationError`.
    """
    if endpoint.scheme == other.scheme and endpoint.scheme in SIDES.known():
        with SIDES.load(endpoint.scheme)(endpoint, name) as side:
            yield side
        return
    rows: ComparedRows
    with ROWS.load(endpoint.scheme)(endpoint, name) as rows:
        yield TypedSide(rows)
