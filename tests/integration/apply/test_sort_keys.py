"""Rows of one key are neighbours in a unit, whatever came in one batch with them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.log import open_reader, unpublished
from airflow_parallel_apply.pipeline.partition import key
from tests.support.rig import Rig
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=2,
        lanes=1,
        tables=TablePatterns(include=("public.*",)),
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE DOMAIN moment AS timestamptz", "CREATE TABLE t (at moment PRIMARY KEY, v int)")
    made.prepare()
    return made


def write_two_batches(rig: Rig) -> None:
    """The same keys twice, the second time beside values that no microseconds can tell."""
    rig.write("INSERT INTO t SELECT timestamptz '2024-01-01' + n * interval '37 days', n FROM generate_series(1, 40) n")
    rig.capture("first")
    rig.transaction(
        "INSERT INTO t VALUES ('infinity', 1), ('-infinity', 2), ('0044-03-15 BC', 3), ('12024-01-01', 4)",
        "UPDATE t SET v = v + 1",
        "DELETE FROM t WHERE v % 3 = 0",
        "INSERT INTO t SELECT at + interval '1 day', 5 FROM t WHERE isfinite(at) AND v % 2 = 0",
    )


def test_a_key_beside_infinity_stays_with_its_other_changes(rig: Rig) -> None:
    write_two_batches(rig)
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_log_whose_order_depended_on_batches_is_applied(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def order_of_before(texts: pa.StringArray) -> key.Numbers:
        try:
            return key._numbers(texts.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))
        except pa.ArrowInvalid:
            return key._prefix_order(texts)

    with monkeypatch.context() as before:
        before.setattr(key, "_time_order", order_of_before)
        before.setattr(unpublished, "KEY_ORDER_VERSION", 0)
        write_two_batches(rig)
        rig.capture("second")
    log = open_reader(rig.config.log_url)
    orders = pa.Table.from_batches(list(log.rows(-1, log.state().last_seqno, columns=["key", "key_order"])))
    assert len(orders.group_by(["key", "key_order"]).aggregate([])) > len(orders.group_by("key").aggregate([]))
    rig.write("UPDATE t SET v = v + 10")
    rig.run()
    assert rig.comparison().equal
