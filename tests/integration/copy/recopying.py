"""Two tables with rows that are followed, and what copies them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.target.protocol import Recopied
from tests.support.rig import Rig


@pytest.fixture(name="rig")
def rig_of_two_tables(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=2,
        lanes=1,
        create_tables=True,
        tables=TablePatterns(include=("public.*",)),
        epoch_max_changes=20,
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.write(
        "CREATE TABLE t (id integer PRIMARY KEY, v text)",
        "CREATE TABLE u (id integer PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'first' FROM generate_series(1, 100) i",
        "INSERT INTO u SELECT i, 'first' FROM generate_series(1, 100) i",
    )
    made.prepare()
    return made


def again(rig: Rig, *tables: str) -> tuple[Recopied, ...]:
    names = [("public", table) for table in tables]
    return recopy_tables(rig.config, rig.source, rig.target, names, report=lambda _: None)


def require_green_and_equal(rig: Rig) -> None:
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


def change(rig: Rig, mark: str) -> None:
    """Changes of every kind, of both tables in the same transactions."""
    rig.transaction(
        f"UPDATE t SET v = '{mark}' WHERE id % 3 = 0",
        f"UPDATE u SET v = '{mark}' WHERE id % 3 = 0",
        "UPDATE t SET id = -id WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 10 = 5",
        f"INSERT INTO t SELECT max(abs(id)) + 1, '{mark}' FROM t",
    )
