"""Tables of every awkward kind in MariaDB under random transactions, four channels: compared, or refused by name."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.awkward_tables import BOTH, SOURCE
from tests.support.awkward_writer import Writer
from tests.support.ddl_messages import install
from tests.support.mariadb_rig import MariaDbRig
from tests.support.variants import gated

REFUSED = ("public.numbers", "public.floats")
"""Tables whose keys have several texts, or NaN and -0 among them."""
ALTERED = (
    # Values that no number of MariaDB has.
    "ALTER TABLE rich MODIFY f longtext, MODIFY g longtext",
    # A key that is longer than what is proposed, within what an index holds.
    "ALTER TABLE odd_keys MODIFY a varchar(600) COLLATE utf8mb4_nopad_bin NOT NULL,"
    " MODIFY b varchar(40) COLLATE utf8mb4_nopad_bin NOT NULL, MODIFY c varchar(6) COLLATE utf8mb4_nopad_bin NOT NULL",
)


@pytest.fixture
def awkward(maria: MariaDbRig) -> MariaDbRig:
    maria.make([*BOTH, *SOURCE], [])
    everything = TablePatterns(include=("*.*",))
    followed = replace(maria, rig=maria.rig.having(tables=everything, epoch_max_changes=120, unit_max_bytes=2**14))
    assert {finding.where for finding in followed.propose() if not finding.fix} <= set(REFUSED)
    maria.server.run(";".join(ALTERED), database="test")
    without = TablePatterns(include=("*.*",), exclude=REFUSED)
    return replace(followed, rig=followed.rig.having(tables=without))


@gated
@pytest.mark.parametrize("barriers", [True, False], ids=["with barriers", "without"])
def test_awkward_tables_are_equal_after_random_transactions(awkward: MariaDbRig, barriers: bool) -> None:
    require_equal_after(awkward, barriers=barriers, runs=2)


@gated
def test_they_are_through_spark_as_well(awkward: MariaDbRig, spark_server: ServerLease, spark_session_id: str) -> None:
    rig = awkward.rig
    through_spark = replace(
        rig,
        stage=lambda opened: open_stage(
            access=ConnectAccess(url=spark_server.url, session_id=spark_session_id),
            config=rig.config,
            target=rig.target,
        ),
    )
    require_equal_after(replace(awkward, rig=through_spark), barriers=False, runs=1)


def require_equal_after(awkward: MariaDbRig, *, barriers: bool, runs: int) -> None:
    rig = awkward.rig
    rig.prepare()
    install(rig.source_dsn)
    with psycopg.connect(rig.source_dsn) as connection:
        writer = Writer(connection, 1, barriers=barriers)
        for _ in range(runs):
            for _ in range(120):
                writer.transaction()
            rig.run()
            comparison = rig.comparison()
            assert comparison.equal, [table for table in comparison.tables if not table.equal]
    assert sum(bool(table.source_rows) for table in comparison.tables) >= 16
