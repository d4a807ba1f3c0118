"""Small segments are merged, and readers that still scan them go on."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_parallel_apply.pipeline.log import WriterOptions, open_reader
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.log.segment import UNLINKED
from airflow_parallel_apply.pipeline.log.writing import create_log, open_writer
from tests.log_batches import IDENTITY, START, files_of, history, random_history
from tests.support.variants import gated

END = 2**62
SMALL_SEGMENTS = WriterOptions(segment_file_bytes=2000, small_file_bytes=1, buffer_bytes=6000)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = str(tmp_path / "log")
    create_log(url, IDENTITY)
    return url


def in_order(url: str) -> pa.Table:
    return pa.Table.from_batches(open_reader(url).rows(-1, END, in_order=True), schema=ROWS).select(UNLINKED.names)


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(START.tzinfo)

    def __call__(self) -> datetime:
        return self.now


def test_adjacent_small_segments_are_merged_and_their_files_stay_for_a_grace(url: str) -> None:
    clock = Clock()
    options = WriterOptions(small_segment_count=3, superseded_grace=timedelta(minutes=10))
    writer = open_writer(url, options=options, clock=clock)
    expected = []
    for number in range(4):
        batch = history(number * 10, 10)
        expected.append(batch[0])
        writer.append(*batch)
        before = open_reader(url).row_files(-1, END)
        writer.commit(number + 1)
    state = open_reader(url).state()
    assert len(state.segments) == 1
    assert (state.segments[0].first_seqno, state.segments[0].last_seqno) == (0, 39)
    assert state.last_seqno == 39
    assert all(Path(path).exists() for path in before)
    assert in_order(url).equals(pa.Table.from_batches(expected))
    linked = pa.Table.from_batches(open_reader(url).rows(-1, END, columns=["previous_seqno"]))
    assert sum(seqno >= 0 for seqno in linked.column(0).to_pylist()) == 120 - 50

    clock.now += timedelta(minutes=9)
    writer.commit(100)
    assert all(Path(path).exists() for path in before)
    clock.now += timedelta(minutes=2)
    writer.commit(101)
    assert not any(Path(path).exists() for path in before)
    assert len(files_of(url)) == 2
    assert in_order(url).equals(pa.Table.from_batches(expected))


@pytest.mark.parametrize("in_order", [True, False])
def test_a_reader_whose_files_are_merged_and_removed_meanwhile_goes_on_with_the_merged_ones(
    url: str, in_order: bool
) -> None:
    clock = Clock()
    options = WriterOptions(small_segment_count=3, superseded_grace=timedelta(minutes=10))
    writer = open_writer(url, options=options, clock=clock)
    expected = []
    for number in range(3):
        batch = history(number * 10, 10)
        expected.append(batch[0])
        writer.append(*batch)
        writer.commit(number + 1)
    reading = open_reader(url).rows(-1, END, columns=["seqno", "fragno"], in_order=in_order)
    found = [next(reading)]
    batch = history(30, 10)
    expected.append(batch[0])
    writer.append(*batch)
    writer.commit(4)
    clock.now += timedelta(minutes=11)
    writer.commit(100)
    assert len(files_of(url)) == 2
    found += reading
    order = [("seqno", "ascending"), ("fragno", "ascending")]
    told = pa.Table.from_batches(expected[:3]).select(["seqno", "fragno"])
    assert pa.Table.from_batches(found).filter(pc.field("seqno") < 30).sort_by(order).equals(told)


@gated
def test_segments_that_reach_the_size_together_are_merged_and_large_ones_are_left_alone(url: str) -> None:
    options = WriterOptions(segment_file_bytes=2**20, small_file_bytes=2**19, merged_file_bytes=2**19)
    writer = open_writer(url, options=options)
    rows, transactions = random_history(20_000, seed=3)
    for start in range(0, 20_000, 1000):
        writer.append(rows.slice(start * 4, 4000), transactions.slice(start, 1000))
        writer.commit(start + 1)
    sizes = [segment.file_bytes for segment in open_reader(url).state().segments]
    assert all(size >= 2**19 for size in sizes[:-4])
    assert max(sizes) < 2 * 2**20
    assert in_order(url).equals(pa.Table.from_batches([rows]))


@gated
def test_many_tiny_commits_are_not_rewritten_each_time(url: str) -> None:
    writer = open_writer(url, options=WriterOptions(small_segment_count=4))
    counts = []
    for number in range(40):
        writer.append(*history(number, 1))
        counts.append(len(writer.commit(number + 1).segments))
    assert max(counts) <= 16
    assert len(list((Path(url) / "manifests").iterdir())) < 1 + 40 + 20
    assert open_reader(url).transactions(-1, END).num_rows == 40
