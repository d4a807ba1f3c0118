"""Tables of every awkward kind under random transactions: topics fold into the source's rows, or a table, or a column
that the address has to name, is refused by name before.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.model.finding import errors
from tests.support.awkward_pipeline import awkward_pipeline, require_equal_tables
from tests.support.awkward_writer import write_awkwardly
from tests.support.rig import Rig
from tests.support.variants import gated

TRANSACTIONS = 150


@gated
def test_awkward_tables_are_equal_but_for_what_is_refused_by_name(
    source_dsn: str, ledger_dsn: str, broker: KafkaBroker, tmp_path: Path
) -> None:
    url = f"kafka://{broker.address}/feed?staging={tmp_path}/staging&text_columns=public.floats.t"
    rig = awkward_pipeline(url, source_dsn=source_dsn, ledger_dsn=ledger_dsn, directory=tmp_path)
    found = errors(check_pipeline(rig.config, rig.source, rig.target).findings)
    assert [(finding.where, finding.is_table) for finding in found] == [('Odd Schema.Order "x" %s', True)]
    with pytest.raises(ParallelApplyError, match="no topic can have"):
        rig.prepare()
    rig = rig.having(tables=TablePatterns(include=("*.*",), exclude=("Odd Schema.*",)))
    rig.prepare()
    rig = _after_too_large_a_message(rig)
    write_awkwardly(source_dsn, TRANSACTIONS, seed=11)
    rig.write("INSERT INTO log_only VALUES ('infinity', 'a'), ('2020-01-01', 'b')")
    with pytest.raises(TargetError, match=r"table public\.log_only, column at"):
        rig.run("one")
    rig = replace(rig, target_dsn=f"{rig.target_dsn},public.log_only.at")
    rig.run("two")
    require_equal_tables(rig, tables=20, rows=200)


def _after_too_large_a_message(rig: Rig) -> Rig:
    """A pipeline that was stopped by a message, and goes on with the option that its error names."""
    rig.write("INSERT INTO toast VALUES (-1, repeat('x', 2000000))")
    with pytest.raises(TargetError, match=r"bytes is too large for topic feed\.public\.toast.*message\.max\.bytes"):
        rig.run("zero")
    rig = replace(rig, target_dsn=rig.target_dsn.replace("?", "?message.max.bytes=100000000&"))
    rig.run("zero")
    return rig
