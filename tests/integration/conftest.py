"""The pipeline that integration tests change."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, TablePatterns
from tests.support.rig import Rig


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    """Without tables; what modules change of it is in a fixture of theirs."""
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=2,
        lanes=1,
        tables=TablePatterns(include=("*.*",)),
        ddl=DdlPolicy.APPLY,
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
