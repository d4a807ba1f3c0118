"""Pipelines of eight channels and small epochs, so that rows meet their neighbours' channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.model.rework import ReworkKind
from tests.support.rig import Rig

CHANNELS: Final = 8
UNIQUE: Final = "CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE, v text)"


def make_rig(source_dsn: str, target_dsn: str, directory: Path, *, lanes: int) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(directory / "log"),
        start=Start.EMPTY,
        channels=CHANNELS,
        lanes=lanes,
        tables=TablePatterns(include=("public.*",)),
        epoch_max_changes=20,
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


def equal_after(rig: Rig, write: Callable[[], None]) -> None:
    rig.prepare()
    write()
    rig.run()
    require_equal(rig)


def require_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison
    assert rig.rows("SELECT count(*) FROM pg_class WHERE relname ~ '^[sm]_' AND relkind = 'r'") == [(0,)]


def conflicts(rig: Rig) -> dict[tuple[str, str | None], int]:
    status = read_status(rig.target, "p")
    met = [found for found in status.rework if found.kind is ReworkKind.MERGE_POINT]
    return {(found.reason, found.table): found.count for found in met}
