"""A pipeline's questions to its servers do not grow with the number of its tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.compare import compare
from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns
from tests.support.rig import Rig
from tests.support.variants import gated

FEW, MANY = 10, 60


def make_tables(rig: Rig, schema: str, count: int) -> None:
    rig.both(
        f"CREATE SCHEMA {schema}",
        f"DO $$ BEGIN FOR i IN 1..{count} LOOP "
        f"EXECUTE format('CREATE TABLE {schema}.t_%s (id integer PRIMARY KEY, v text)', i); END LOOP; END $$",
    )


def statements(do: Callable[[], Any]) -> int:
    """How many psycopg sends meanwhile."""
    count = 0
    execute = psycopg.Cursor.execute

    def counted(cursor: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        return execute(cursor, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", counted)
        do()
    return count


@gated
def test_checks_copies_and_runs_send_as_many_statements_for_many_tables_as_for_few(
    source_dsn: str, target_dsn: str, tmp_path: Path
) -> None:
    def rig_of(name: str) -> Rig:
        config = PipelineConfig(
            pipeline=name, log_url=str(tmp_path / name), channels=2, tables=TablePatterns(include=(f"{name}.*",))
        )
        return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)

    counts = []
    for name, tables in (("few", FEW), ("many", MANY)):
        rig = rig_of(name)
        make_tables(rig, name, tables)
        counts.append(
            [
                statements(lambda rig=rig: check_pipeline(rig.config, rig.source, rig.target)),
                statements(rig.prepare),
                statements(lambda rig=rig: check_pipeline(rig.config, rig.source, rig.target)),
                statements(rig.run),
                statements(rig.run),
            ]
        )
    for few, many in zip(*counts, strict=True):
        # Who waits for something asks a few times more or less.
        assert many - few < (MANY - FEW) // 2, counts


def test_a_comparison_opens_no_more_sessions_for_many_tables_than_its_jobs_need(
    source_dsn: str, target_dsn: str, tmp_path: Path
) -> None:
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path), tables=TablePatterns(include=("few.*",)))
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    make_tables(rig, "few", FEW)
    opened = []
    connect = psycopg.connect

    def counted(*arguments: Any, **named: Any) -> Any:
        opened.append(arguments)
        return connect(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg, "connect", counted)
        assert compare(rig.source, rig.target, config.tables, jobs=2).equal
    # One lists the tables.
    assert len(opened) <= 1 + 2 * 2
