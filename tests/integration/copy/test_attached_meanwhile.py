"""A partition that is attached while a copy reads, and detached behind it, leaves no row in the copy.

A look at the catalog never sees it, and the slot sends nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.capture.values import IntoLog
from airflow_parallel_apply.pipeline.config import Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.copy.postgres.initial import InitialCopy
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.support.copying import require_equal
from tests.support.rig import Rig, execute
from tests.support.variants import gated

ATTACH = "ALTER TABLE p ATTACH PARTITION loading FOR VALUES FROM (100) TO (200)"
DETACH = "ALTER TABLE p DETACH PARTITION loading"


@pytest.fixture(name="rig")
def rig_of_a_partitioned_table(rig: Rig) -> Rig:
    rig.write(
        "CREATE TABLE a (id integer PRIMARY KEY)",
        "INSERT INTO a SELECT generate_series(1, 10)",
        "CREATE TABLE p (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (100) PARTITION BY LIST (id)",
        "CREATE TABLE p_1_1 PARTITION OF p_1 DEFAULT",
        "INSERT INTO p SELECT generate_series(1, 20)",
        "CREATE TABLE loading (id integer PRIMARY KEY)",
        "INSERT INTO loading VALUES (150)",
    )
    execute(rig.target_dsn, "CREATE TABLE a (id integer PRIMARY KEY)", "CREATE TABLE p (id integer PRIMARY KEY)")
    return rig.having(start=Start.COPY, tables=TablePatterns(include=("public.[ap]",)))


@pytest.fixture
def attaching(rig: Rig) -> Iterator[Any]:
    """Attaches it when called, once."""
    statements = [ATTACH]

    def attach(*_: Any) -> None:
        while statements:
            rig.write(statements.pop())

    yield attach
    assert not statements


def goes_on(rig: Rig) -> None:
    rig.write(DETACH, "INSERT INTO p VALUES (50)")
    rig.run()
    require_equal(rig)


def test_in_a_first_copy(rig: Rig, attaching: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = InitialCopy.run
    monkeypatch.setattr(InitialCopy, "run", lambda *arguments: (attaching(), copy(*arguments)))
    rig.prepare()
    goes_on(rig)


@gated
def test_in_a_copy_of_tables_anew(rig: Rig, attaching: Any) -> None:
    rig.prepare()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "a"), ("public", "p")], report=attaching)
    goes_on(rig)


@gated
def test_in_a_copy_into_the_log(rig: Rig, attaching: Any, tmp_path: Path) -> None:
    config = replace(rig.config, pipeline="fed", slot="fed", log_url=str(tmp_path / "fed"))
    with closing(open_capture(rig.source, config)) as capturing:
        capturing.prepare(IntoLog(report=attaching, cancelled=lambda: False))
    log = open_reader(config.log_url)
    assert sum(batch.num_rows for batch in log.rows(-1, log.state().last_seqno)) == 10 + 20
