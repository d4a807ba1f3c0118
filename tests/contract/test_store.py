"""What every store promises; one line admits another."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Serial, Unit, UnitKind
from airflow_parallel_apply.pipeline.store.open import open_store
from tests.support.written_log import Change, append, make_log

LAST = 49


@pytest.fixture
def log(tmp_path: Path) -> LogReader:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", number, "a")] for number in range(LAST + 1)])
    return open_reader(url)


@pytest.fixture(params=list(StoreName))
def name(request: pytest.FixtureRequest) -> StoreName:
    found: StoreName = request.param
    return found


def unit(kind: UnitKind, after_seqno: int, last_seqno: int) -> Unit:
    return Unit(
        pipeline="p",
        generation=1,
        kind=kind,
        channels=4,
        token="t",
        after_seqno=after_seqno,
        last_seqno=last_seqno,
        row_count=0,
    )


def test_the_channels_branches_hold_each_row_once(name: StoreName, log: LogReader) -> None:
    found = []
    for channel in range(4):
        asked = unit(Branch(channel), 9, 29)
        branch = open_store(name, log, asked).branch(asked)
        assert branch.condition is not None
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE log (seqno, bucket)")
        rows = pq.read_table(list(branch.files), columns=["seqno", "bucket"]).to_pylist()
        database.executemany("INSERT INTO log VALUES (:seqno, :bucket)", rows)
        bounds = [branch.after_seqno, branch.last_seqno]
        chosen = f"SELECT seqno FROM log WHERE seqno > ? AND seqno <= ? AND ({branch.condition})"
        found += [seqno for (seqno,) in database.execute(chosen, bounds)]
    assert sorted(found) == list(range(10, 30))


def test_a_channel_with_more_rows_than_others_is_divided_in_even_ranges_of_its_own(
    name: StoreName, log: LogReader
) -> None:
    asked = replace(unit(Branch(0), -1, LAST), row_count=40)
    assert open_store(name, log, asked).branch(asked).ranges == ()
    found = open_store(name, log, asked).branch(asked, parts=4).ranges
    assert len(found) == 3, "40 of 50 rows in one of four channels are three channels' share"
    assert all(last <= 255 for _, last in found[:-1])
    even = replace(asked, row_count=13)
    assert open_store(name, log, even).branch(even, parts=4).ranges == ()


def test_a_serial_unit_takes_every_channels_rows(name: StoreName, log: LogReader) -> None:
    asked = unit(Serial(), 9, 10)
    assert open_store(name, log, asked).branch(asked).condition is None
