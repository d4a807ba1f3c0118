"""Tables of every awkward kind under random transactions: the lake has the source's rows, or refuses them by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from tests.support.awkward_pipeline import awkward_pipeline, require_equal_tables
from tests.support.awkward_writer import write_awkwardly
from tests.support.variants import gated

TRANSACTIONS = 150


@gated
def test_awkward_tables_are_equal_but_for_those_that_are_refused_by_name(
    source_dsn: str, ledger_dsn: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    rig = awkward_pipeline(f"delta://{lake}", source_dsn=source_dsn, ledger_dsn=ledger_dsn, directory=tmp_path)
    # Each commit to a lake has its price.
    rig = rig.having(channels=4, epoch_max_changes=400)
    with pytest.raises(ParallelApplyError) as refused:
        rig.prepare()
    names = set(re.findall(r"\w+\.\w+(?= has | is of)", str(refused.value)))
    assert names == {f"public.{table}" for table in ("floats", "numbers", "odd_keys")}
    rig = rig.having(tables=TablePatterns(include=("*.*",), exclude=tuple(sorted(names))))
    rig.prepare()
    write_awkwardly(source_dsn, TRANSACTIONS, seed=11, barriers=False)
    rig.run("one")
    require_equal_tables(rig, tables=15, rows=100)
