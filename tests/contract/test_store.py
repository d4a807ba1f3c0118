"""Promises of every store; `StoreName` admits another."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Serial
from airflow_parallel_apply.pipeline.store.channel_log.feeder import ChannelLogFeeder
from airflow_parallel_apply.pipeline.store.protocol import FileBranch, StoreBranch, StreamBranch, Stretch
from tests.contract.stores import CHANNELS, LAST, WAYS, WHOLE, StoreCase, read, unit, written_log
from tests.support.memory_router import memory_router, streamed
from tests.support.variants import gated
from tests.support.written_log import Change, append

MOMENT = datetime(2026, 2, 1, tzinfo=UTC)


@pytest.fixture(params=list(StoreName))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreCase]:
    log = written_log(str(tmp_path / "log"))
    if request.param is not StoreName.MEMORY:
        yield StoreCase(name=request.param, log=log)
        return
    with memory_router(tmp_path) as running:
        yield StoreCase(name=request.param, log=log, router=running.endpoint)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_channels_branches_hold_each_row_once_whatever_became_of_the_store(
    case: StoreCase, way: Callable[[StoreCase], None]
) -> None:
    way(case)
    for first, last in ((9, 29), (14, LAST), (14, 20), (-1, LAST), (29, 30)):
        for channel in range(CHANNELS):
            asked = case.counted(unit(Branch(channel), first, last))
            if asked.row_count:
                store = case.store()
                assert read(store.branch(asked)) == read(store.branch(asked)) == case.seqnos(asked)


@gated
def test_rows_of_a_history_that_a_restored_log_has_lost_are_not_served(case: StoreCase, tmp_path: Path) -> None:
    """Source and log of an earlier moment: as many transactions follow as were lost, none of them as it was."""
    root, last = case.log.root, LAST + 10
    assert root is not None
    shutil.copytree(root, tmp_path / "backup" / "kept")
    append(str(root), LAST + 1, inserts("lost"), times=[MOMENT] * 10)
    newer = replace(case, log=open_reader(str(root)))
    newer.feed(WHOLE, Stretch(LAST, last))
    assert served(newer, last) == {"lost"}
    restore(root, tmp_path / "backup" / "kept")
    append(str(root), LAST + 1, inserts("new"), times=[MOMENT + timedelta(hours=1)] * 10)
    restored = replace(case, log=open_reader(str(root)))
    assert served(restored, last) == {"new"}
    feeder = restored.feeder()
    lacking = () if feeder is None else feeder.lacks(Stretch(-1, last))
    restored.feed(*lacking)
    assert served(restored, last) == {"new"}
    if isinstance(feeder, ChannelLogFeeder):
        assert lacking == (Stretch(LAST, last),), "what both histories have is held"
        assert feeder.lacks(Stretch(-1, last)) == ()
        files = {file for branch in branches(restored, last) for file in branch.files}
        assert not files & set(restored.log.row_files(-1, last)), "fed anew"


def test_a_channel_with_more_rows_than_others_is_divided_in_even_ranges_of_its_own(case: StoreCase) -> None:
    asked = replace(unit(Branch(0), -1, LAST), row_count=40)
    assert case.store().branch(asked).ranges == ()
    found = case.store().branch(asked, parts=4).ranges
    assert len(found) == 3, "40 of 50 rows in one of four channels are three channels' share"
    assert all(last <= 255 for _, last in found[:-1])
    even = replace(asked, row_count=13)
    assert case.store().branch(even, parts=4).ranges == ()


def test_a_serial_unit_takes_every_channels_rows(case: StoreCase) -> None:
    case.feed(WHOLE)
    assert case.store().branch(unit(Serial(), 9, 10)).condition is None


def inserts(value: str) -> list[list[Change]]:
    return [[Change("I", number, value)] for number in range(LAST + 1, LAST + 11)]


def restore(root: Path, kept: Path) -> None:
    """Bring back a log over a newer one, as a tool does that passes over what needs no backup."""
    for path in root.iterdir():
        if path.name != "channels":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(kept, root, dirs_exist_ok=True)


def served(case: StoreCase, last: int) -> set[str]:
    return {value for branch in branches(case, last) for value in values_of(branch, LAST)}


def branches(case: StoreCase, last: int) -> list[StoreBranch]:
    """Those of all channels with rows behind `LAST`."""
    rows = pa.Table.from_batches(case.log.rows(LAST, last, columns=["bucket"])).column("bucket").to_pylist()
    counts = Counter(bucket * CHANNELS // 1024 for bucket in rows)
    store = case.store()
    return [
        store.branch(replace(unit(Branch(channel), LAST, last), row_count=count)) for channel, count in counts.items()
    ]


def values_of(branch: StoreBranch, after_seqno: int) -> list[str]:
    match branch:
        case FileBranch():
            rows = pq.read_table(list(branch.files), columns=["seqno", "values"])
        case StreamBranch():
            rows = pa.Table.from_batches(streamed(branch)).select(["seqno", "values"])
    return [row["values"].split("\t")[1] for row in rows.to_pylist() if row["seqno"] > after_seqno]
