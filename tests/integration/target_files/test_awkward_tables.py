"""Tables of every awkward kind under random transactions: a feed's rows are the source's, or named before they come."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.integration.target_files.feeds import files_of
from tests.support.awkward_tables import make_tables
from tests.support.awkward_writer import write_awkwardly
from tests.support.ddl_messages import install
from tests.support.rig import Rig
from tests.support.variants import gated

TRANSACTIONS = 150


@gated
@pytest.mark.timeout(300)
def test_awkward_tables_are_equal_but_for_what_the_address_has_to_name(
    source_dsn: str, target_dsn: str, ledger_dsn: str, tmp_path: Path
) -> None:
    config = PipelineConfig(
        pipeline="awkward",
        log_url=str(tmp_path / "log"),
        channels=8,
        tables=TablePatterns(include=("*.*",)),
        ddl=DdlPolicy.APPLY,
        start=Start.EMPTY,
        epoch_max_changes=120,
    )
    make_tables(Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn))
    install(source_dsn)
    lake = tmp_path / "lake"
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=f"files+file://{lake}", ledger_dsn=ledger_dsn)
    rig.prepare()
    write_awkwardly(source_dsn, TRANSACTIONS, seed=11)
    rig.write("INSERT INTO log_only VALUES ('infinity', 'a'), ('2020-01-01', 'b')")
    with pytest.raises(TargetError, match=r"text=public\.floats\.t"):
        rig.run("one")
    rig = replace(rig, target_dsn=f"{rig.target_dsn}?text=public.log_only.at,public.floats.t")
    rig.run("two")
    definitions = Counter(relation.name for relation in open_reader(rig.config.log_url).state().relations)
    compared = [table for table in rig.comparison().tables if definitions[table.name] == 1]
    assert [(table.name, table.problem, table.differences) for table in compared if not table.equal] == []
    assert len(compared) > 20
    assert sum(table.source_rows or 0 for table in compared) > 200
    files = [lake / file.path for file in files_of(lake) if file.table == "public.log_only"]
    assert "infinity" in [value for path in files for value in pq.read_table(path)["at"].to_pylist()]
