"""Opening a side of a comparison by its endpoint's scheme."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from airflow_parallel_apply.pipeline.compare.protocol import ComparedSide
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.schemes import Schemes

SIDES: Final = Schemes(
    thing="comparison",
    group="airflow_parallel_apply.comparisons",
    ours={POSTGRESQL: "airflow_parallel_apply.pipeline.compare.postgres.side:open_postgres_side"},
)


def open_side(endpoint: Endpoint, name: str) -> AbstractContextManager[ComparedSide]:
    """A session of its own; `name`: what people call the side. Errors: `Unavailable`, `ConfigurationError`."""
    side: AbstractContextManager[ComparedSide] = SIDES.load(endpoint.scheme)(endpoint, name)
    return side
