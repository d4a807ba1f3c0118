"""Tables whose changes a log passes over, each below an offset of its own."""

from __future__ import annotations

from pathlib import Path

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import PassedOver
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from tests.support.written_log import Change, append, make_log


def test_one_of_which_nothing_is_passed_over_keeps_no_rows_of_others(tmp_path: Path) -> None:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", 1, "a")], [Change("I", 2, "b")]])
    writer = open_writer(url)
    copied = PassedOver(schema="public", table="t", below_offset=10, recopy_id="copy")
    gone = PassedOver(schema="public", table="gone", below_offset=0, recopy_id="copy")
    writer.pass_over([gone, copied], after_seqno=NO_SEQNO)
    writer.commit(writer.state().captured_offset)
    reader = open_reader(url)
    left = [seqno for batch in reader.rows(NO_SEQNO, 1) for seqno in batch.column("seqno").to_pylist()]
    assert left == [1]
    assert {one.table for one in reader.state().passed_over} == {"t", "gone"}


def test_each_keeps_no_rows_below_its_own_offset(tmp_path: Path) -> None:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", number, "a")] for number in range(3)])
    writer = open_writer(url)
    copied = PassedOver(schema="public", table="t", below_offset=20, recopy_id="copy")
    lost = PassedOver(schema="public", table="former", below_offset=10, recopy_id="copy")
    writer.pass_over([lost, copied], after_seqno=NO_SEQNO)
    writer.commit(writer.state().captured_offset)
    left = [seqno for batch in open_reader(url).rows(NO_SEQNO, 2) for seqno in batch.column("seqno").to_pylist()]
    assert left == [2]
