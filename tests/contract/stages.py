"""The apply stages that the contract suite admits: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.local_stage import LocalStage


class MakeStage(Protocol):
    """Makes a stage of a log and a target."""

    def __call__(self, *, log_url: str, target: Endpoint) -> Stage: ...


def _on_spark(request: pytest.FixtureRequest) -> MakeStage:
    server, session_id = request.getfixturevalue("spark_server"), request.getfixturevalue("spark_session_id")
    return lambda *, log_url, target: open_stage(
        access=ConnectAccess(url=server.url, session_id=session_id),
        config=PipelineConfig(pipeline="demo", log_url=log_url),
        target=target,
    )


STAGES: dict[str, Callable[[pytest.FixtureRequest], MakeStage]] = {
    "local": lambda request: lambda *, log_url, target: LocalStage(log_url, target),
    "spark": _on_spark,
}
