"""A pipeline of all tables, with one channel or several, and the check that both sides are equal after a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from tests.support.rig import Rig


@pytest.fixture(name="rig", params=[pytest.param(1, marks=pytest.mark.long), 4], ids=["1 channel", "4 channels"])
def rig_of_channels(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    return make_rig(source_dsn, target_dsn, tmp_path, channels=request.param)


@pytest.fixture(name="wide_rig")
def rig_of_four_channels(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    return make_rig(source_dsn, target_dsn, tmp_path, channels=4)


def make_rig(source_dsn: str, target_dsn: str, directory: Path, channels: int) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        start=Start.EMPTY,
        log_url=str(directory / "log"),
        channels=channels,
        lanes=1,
        tables=TablePatterns(include=("*.*",)),
        epoch_max_changes=50,
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


def equal_after(rig: Rig, write: Callable[[], None]) -> None:
    rig.prepare()
    write()
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison
