"""Tables of every awkward kind under random transactions: the lake has the source's rows, or refuses them by name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from tests.support.awkward_tables import make_tables
from tests.support.awkward_writer import write_awkwardly
from tests.support.ddl_messages import install
from tests.support.rig import Rig
from tests.support.variants import gated

TRANSACTIONS = 150


@gated
@pytest.mark.timeout(400)
def test_awkward_tables_are_equal_but_for_those_that_are_refused_by_name(
    source_dsn: str, target_dsn: str, ledger_dsn: str, tmp_path: Path
) -> None:
    config = PipelineConfig(
        pipeline="awkward",
        log_url=str(tmp_path / "log"),
        channels=4,
        tables=TablePatterns(include=("*.*",)),
        ddl=DdlPolicy.SKIP,
        start=Start.EMPTY,
        epoch_max_changes=400,
    )
    make_tables(Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn))
    install(source_dsn)
    (tmp_path / "lake").mkdir()
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=f"delta://{tmp_path / 'lake'}", ledger_dsn=ledger_dsn)
    with pytest.raises(ParallelApplyError) as refused:
        rig.prepare()
    names = set(re.findall(r"\w+\.\w+(?= has | is of)", str(refused.value)))
    assert names == {f"public.{table}" for table in ("floats", "numbers", "odd_keys")}
    rig = replace(rig, config=replace(config, tables=TablePatterns(include=("*.*",), exclude=tuple(sorted(names)))))
    rig.prepare()
    write_awkwardly(source_dsn, TRANSACTIONS, seed=11, barriers=False)
    rig.run("one")
    compared = rig.comparison().tables
    assert [(table.name, table.problem, table.differences) for table in compared if not table.equal] == []
    assert len(compared) > 15
    assert sum(table.source_rows or 0 for table in compared) > 100
