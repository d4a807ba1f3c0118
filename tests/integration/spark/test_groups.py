"""Epoch consistency through Spark: transactions larger than any unit, in eight channels, by one lane."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, Endpoint, EpochProtocol, PipelineConfig, Start
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.rig import Rig


@pytest.fixture
def protocol() -> EpochProtocol:
    return EpochProtocol.LEADER_MERGE


@pytest.fixture
def rig(
    source_dsn: str,
    target_dsn: str,
    spark_server: ServerLease,
    spark_session_id: str,
    tmp_path: Path,
    protocol: EpochProtocol,
) -> Rig:
    config = PipelineConfig(
        pipeline="large",
        start=Start.EMPTY,
        log_url=str(tmp_path / "log"),
        channels=8,
        lanes=1,
        epoch_max_changes=10_000,
        consistency=Consistency.EPOCH,
        epoch_protocol=protocol,
    )
    access = ConnectAccess(url=spark_server.url, session_id=spark_session_id)
    target = Endpoint(conn_id="target", url=target_dsn)
    return Rig(
        config=config,
        source_dsn=source_dsn,
        target_dsn=target_dsn,
        stage=lambda opened: open_stage(access=access, config=config, target=target),
    )


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "protocol", [EpochProtocol.LEADER_MERGE, pytest.param(EpochProtocol.TWO_PHASE, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("changes", [100_000, pytest.param(2_000_000, marks=pytest.mark.long)])
def test_one_transaction_of_any_size_is_committed_at_once_by_one_lane(
    rig: Rig, changes: int, protocol: EpochProtocol
) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write(f"INSERT INTO t SELECT i, 'a' FROM generate_series(1, {changes // 2}) i")
    rig.transaction("UPDATE t SET v = 'b' WHERE id % 2 = 0", f"DELETE FROM t WHERE id % 2 = 1 AND id <= {changes // 2}")
    opened = rig.open("run")
    report = rig.lane(opened, 0)
    closed = rig.close(opened, [report.to_json()])
    assert closed.rows == changes
    assert report.groups in (1, 2)
    assert (report.restaged_groups, report.replayed_units) == (0, 0)
    assert report.prepared_groups == (report.groups if protocol is EpochProtocol.TWO_PHASE else 0)
    assert report.units == report.groups, "one job stages for all channels"
    assert rig.comparison().equal
    assert rig.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []
