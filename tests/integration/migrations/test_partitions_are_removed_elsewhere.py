"""Partitions that are dropped or detached where the target does not read the condition of their rows: the run stops and
says what a person does, and the run that its hint asks for passes over nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import GATED, gated

TABLES = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (20) TO (30)",
    "CREATE TABLE other (id integer PRIMARY KEY)",
)
ROWS = "INSERT INTO t SELECT i, 'a' FROM generate_series(0, 29) i WHERE i <> 5"
ANEW = "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)"
TRANSACTIONS = {
    "dropped": ["DROP TABLE t_1"],
    "detached": ["ALTER TABLE t DETACH PARTITION t_1"],
    "emptied before": ["DELETE FROM t_1", "DROP TABLE t_1"],
    "written to before": ["UPDATE t SET v = 'b' WHERE id < 3", "INSERT INTO t VALUES (5, 'x')", "DROP TABLE t_1"],
    "made again": ["DROP TABLE t_1", ANEW, "INSERT INTO t VALUES (5, 'x')"],
    "two, one of them emptied": ["DROP TABLE t_1", "DELETE FROM t_2", "DROP TABLE t_2"],
    "sent": ["DROP TABLE t_1", ddl("DROP TABLE t_1")],
    "beside sent DDL": ["CREATE INDEX i ON other (id)", ddl("CREATE INDEX i ON public.other (id)"), "DROP TABLE t_1"],
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def begun(source_dsn: str, ledger_dsn: str, target: str, directory: Path, policy: DdlPolicy) -> Rig:
    execute(source_dsn, *TABLES)
    install(source_dsn)
    config = PipelineConfig(
        pipeline="p", log_url=str(directory / "log"), start=Start.EMPTY, channels=2, ddl=policy,
        tables=TablePatterns(include=("public.t", "public.other")),
    )  # fmt: skip
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target, ledger_dsn=ledger_dsn)
    rig.run()
    rig.write(ROWS)
    rig.run()
    return rig


def delete(lake: Path, told: list[str]) -> None:
    for condition in told:
        DeltaTable(f"{lake}/public/t").delete(condition)


def conditions(hint: str) -> list[str]:
    return re.findall(r"rows of public\.t that meet this, in its own words: (\(.*?\)\))", hint)


@pytest.mark.parametrize(
    ("case", "policy"),
    [
        ("sent", DdlPolicy.REFUSE),
        *(pytest.param(case, DdlPolicy.SKIP, marks=GATED) for case in TRANSACTIONS),
        pytest.param("written to before", DdlPolicy.APPLY, marks=GATED),
        pytest.param("beside sent DDL", DdlPolicy.APPLY, marks=GATED),
    ],
)
def test_the_hint_leads_on_whatever_the_transaction_did_besides(
    source_dsn: str, ledger_dsn: str, lake: Path, tmp_path: Path, case: str, policy: DdlPolicy
) -> None:
    rig = begun(source_dsn, ledger_dsn, f"delta://{lake}", tmp_path, policy)
    rig.transaction(*TRANSACTIONS[case])
    rig.write("INSERT INTO other VALUES (1)", "UPDATE t SET v = 'c' WHERE id > 25")
    with pytest.raises(FatalError, match=r"rows of public\.t went with a partition") as caught:
        rig.run()
    before, _, behind = str(caught.value).partition("Behind that run")
    delete(lake, conditions(before))
    assert ("so do that first, too: CREATE INDEX" in before) is (case == "beside sent DDL")
    skip_as_the_hint_says(rig, caught.value)
    delete(lake, conditions(behind))
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("policy", [DdlPolicy.REFUSE, DdlPolicy.SKIP])
def test_each_is_told_by_itself(
    source_dsn: str, ledger_dsn: str, lake: Path, tmp_path: Path, policy: DdlPolicy
) -> None:
    rig = begun(source_dsn, ledger_dsn, f"delta://{lake}", tmp_path, policy)
    rig.write("DROP TABLE t_1", "INSERT INTO other VALUES (1)", "DROP TABLE t_2", "UPDATE t SET v = 'c'")
    for _ in range(2):
        with pytest.raises(FatalError, match=r"rows of public\.t went with a partition") as caught:
            rig.run()
        delete(lake, conditions(str(caught.value)))
        skip_as_the_hint_says(rig, caught.value)
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("policy", DdlPolicy)
def test_no_feed_passes_it_over_unless_a_run_ends_there(
    source_dsn: str, ledger_dsn: str, lake: Path, tmp_path: Path, policy: DdlPolicy
) -> None:
    rig = begun(source_dsn, ledger_dsn, f"files+file://{lake}", tmp_path, policy)
    rig.transaction("DROP TABLE t_1", ddl("DROP TABLE t_1"), "ALTER TABLE t DETACH PARTITION t_2")
    for _ in range(2):
        with pytest.raises(FatalError, match=r"rows of public\.t went with a partition") as caught:
            rig.run()
    told = str(caught.value)
    assert "To start anew" in told
    more = "DROP TABLE t_1; the rows of public.t that meet ((id IS NOT NULL) AND (id >= 10) AND (id < 20))."
    assert f"Such a run passes over more of the same transaction: {more}" in told
    skip_as_the_hint_says(rig, caught.value)
    rig.run()
