"""The buffering router: one source of Arrow batches, many outputs, none of which holds up another."""

from airflow_parallel_apply.router.engine.budget import Budget
from airflow_parallel_apply.router.engine.engine import Engine
from airflow_parallel_apply.router.engine.items import Reached, Tagged
from airflow_parallel_apply.router.engine.routes import (
    HashRoutes,
    MirrorRoutes,
    PlacedRoutes,
    RangeRoutes,
    Routes,
    Span,
)
from airflow_parallel_apply.router.engine.states import Demand, Phase
from airflow_parallel_apply.router.engine.stats import OutputStats
from airflow_parallel_apply.router.engine.stream import StreamOutput, stream_engine
from airflow_parallel_apply.router.engine.window import WindowOutput, window_engine

__all__ = [
    "Budget",
    "Demand",
    "Engine",
    "HashRoutes",
    "MirrorRoutes",
    "OutputStats",
    "Phase",
    "PlacedRoutes",
    "RangeRoutes",
    "Reached",
    "Routes",
    "Span",
    "StreamOutput",
    "Tagged",
    "WindowOutput",
    "stream_engine",
    "window_engine",
]
