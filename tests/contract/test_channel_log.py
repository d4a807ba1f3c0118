"""The promises of the store of files, `channel_log`, beyond those of every store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.log.mark import mark_of
from airflow_parallel_apply.pipeline.model.epoch import Branch
from airflow_parallel_apply.pipeline.store.channel_log.feeder import LEFT_SECONDS, ChannelLogFeeder
from airflow_parallel_apply.pipeline.store.feed import feed_stretch
from airflow_parallel_apply.pipeline.store.protocol import Stretch
from tests.contract.stores import (
    CHANNELS,
    LAST,
    ROUTING,
    WHOLE,
    StoreCase,
    fed_by_one_that_died,
    positions,
    read,
    unit,
    written_log,
)


@pytest.fixture
def case(tmp_path: Path) -> StoreCase:
    return StoreCase(name=StoreName.CHANNEL_LOG, log=written_log(str(tmp_path / "log")))


def feeder_of(case: StoreCase, *stretches: Stretch) -> ChannelLogFeeder:
    """One that has fed the stretches."""
    feeder = case.feed(*stretches)
    assert isinstance(feeder, ChannelLogFeeder)
    return feeder


def test_files_serve_what_they_hold_and_what_they_lack_is_told(case: StoreCase) -> None:
    feeder = feeder_of(case, Stretch(9, 19))
    assert feeder.lacks(WHOLE) == (Stretch(-1, 9), Stretch(19, LAST))
    asked = case.counted(unit(Branch(1), 9, 19))
    served = case.store().branch(asked)
    assert not set(served.files) & set(case.log.row_files(-1, LAST))
    assert sum(one.row_count for one in feeder.status().channels) == 10
    beyond = case.counted(unit(Branch(1), 9, 20))
    assert set(case.store().branch(beyond).files) == set(case.log.row_files(-1, LAST))


def test_what_is_trimmed_is_what_its_channel_has_passed_and_nothing_else(case: StoreCase) -> None:
    feeder = feeder_of(case, Stretch(-1, 14), Stretch(14, LAST))
    before = [one.row_count for one in feeder.status().channels]
    assert feeder.trim(positions(13, 14, LAST, LAST)) == 5
    after = [one.row_count for one in feeder.status().channels]
    assert after[0] == before[0]
    assert 0 < after[1] < before[1]
    assert after[2:] == [0, 0]
    assert feeder.lacks(WHOLE) == (), "what a channel still needs is held"
    assert feeder.trim(positions(LAST, LAST, LAST, LAST)) == 3
    assert feeder.lacks(WHOLE) == (WHOLE,)
    assert case.channel_files() == []


def test_a_large_put_goes_to_disk_and_no_reader_sees_it_before_it_is_finished(case: StoreCase) -> None:
    feeder = feeder_of(case)
    feeder._buffer_bytes = 1
    for batch in case.log.rows(-1, LAST):
        for number in range(batch.num_rows):
            row = batch.slice(number, 1)
            feeder.put(WHOLE, int(row.column("bucket")[0].as_py() * CHANNELS // 1024), [row])
    assert len(case.channel_files()) == CHANNELS
    assert feeder.lacks(WHOLE) == (WHOLE,)
    mark = mark_of(case.log, LAST)
    assert mark is not None
    assert feeder.finish(WHOLE, mark)
    assert sum(one.row_count for one in feeder.status().channels) == LAST + 1
    asked = case.counted(unit(Branch(2), -1, LAST))
    assert read(case.store().branch(asked)) == case.seqnos(asked)


def test_of_two_feeders_one_holds_a_stretch_and_the_others_files_go(case: StoreCase) -> None:
    first, second = feeder_of(case), feeder_of(case)
    feed_stretch(case.log, ROUTING, first, WHOLE)
    files = case.channel_files()
    feed_stretch(case.log, ROUTING, second, WHOLE)
    assert case.channel_files() == files


def test_what_a_crash_left_is_swept_later(case: StoreCase) -> None:
    fed_by_one_that_died(case)
    feeder = feeder_of(case, WHOLE)
    assert len(case.channel_files()) == 2 * CHANNELS
    feeder.trim(positions(-1, -1, -1, -1))
    assert len(case.channel_files()) == 2 * CHANNELS, "it may be another's who is at work"
    feeder._clock = lambda: time.time() + 2 * LEFT_SECONDS
    feeder.trim(positions(-1, -1, -1, -1))
    assert len(case.channel_files()) == CHANNELS
