"""Tables of every awkward kind under random transactions: a feed's rows are the source's, or named before they come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import TargetError
from tests.integration.target_files.feeds import files_of
from tests.support.awkward_pipeline import awkward_pipeline, require_equal_tables
from tests.support.awkward_writer import write_awkwardly
from tests.support.variants import gated

TRANSACTIONS = 150


@gated
def test_awkward_tables_are_equal_but_for_what_the_address_has_to_name(
    source_dsn: str, ledger_dsn: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    rig = awkward_pipeline(
        f"files+file://{lake}", source_dsn=source_dsn, ledger_dsn=ledger_dsn, directory=tmp_path, ddl=DdlPolicy.APPLY
    )
    rig.prepare()
    write_awkwardly(source_dsn, TRANSACTIONS, seed=11)
    rig.write("INSERT INTO log_only VALUES ('infinity', 'a'), ('2020-01-01', 'b')")
    with pytest.raises(TargetError, match=r"text=public\.floats\.t"):
        rig.run("one")
    rig = replace(rig, target_dsn=f"{rig.target_dsn}?text=public.log_only.at,public.floats.t")
    rig.run("two")
    require_equal_tables(rig, tables=20, rows=200)
    files = [lake / file.path for file in files_of(lake) if file.table == "public.log_only"]
    assert "infinity" in [value for path in files for value in pq.read_table(path)["at"].to_pylist()]
