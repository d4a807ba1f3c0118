"""What every store promises; one line admits another."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind, Reason, Unit
from airflow_parallel_apply.pipeline.store.open import open_store
from airflow_parallel_apply.pipeline.store.protocol import Store
from tests.support.written_log import Change, append, make_log

LAST = 49


@pytest.fixture(params=list(StoreName))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", number, "a")] for number in range(LAST + 1)])
    return open_store(request.param, open_reader(url))


def epoch(last_seqno: int) -> Epoch:
    return Epoch(
        number=0,
        first_seqno=0,
        last_seqno=last_seqno,
        kind=EpochKind.PARALLEL,
        reason=Reason.END,
        rows=(last_seqno + 1,),
        bytes_=(10,),
    )


def unit(channel: int | None, after_seqno: int, last_seqno: int) -> Unit:
    return Unit(
        pipeline="p",
        generation=1,
        channel=channel,
        channels=4,
        token="t",
        after_seqno=after_seqno,
        last_seqno=last_seqno,
        row_count=0,
    )


def test_the_branches_of_a_put_epoch_hold_each_row_once(store: Store) -> None:
    store.put(epoch(LAST))
    store.put(epoch(LAST))
    found = []
    for channel in range(4):
        branch = store.branch(unit(channel, 9, 29))
        assert branch.condition is not None
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE log (seqno, bucket)")
        rows = pq.read_table(list(branch.files), columns=["seqno", "bucket"]).to_pylist()
        database.executemany("INSERT INTO log VALUES (:seqno, :bucket)", rows)
        bounds = [branch.after_seqno, branch.last_seqno]
        chosen = f"SELECT seqno FROM log WHERE seqno > ? AND seqno <= ? AND ({branch.condition})"
        found += [seqno for (seqno,) in database.execute(chosen, bounds)]
    assert sorted(found) == list(range(10, 30))


def test_a_serial_unit_takes_every_channels_rows(store: Store) -> None:
    store.put(epoch(LAST))
    assert store.branch(unit(None, 9, 10)).condition is None


def test_an_epoch_that_the_log_does_not_hold_is_refused(store: Store) -> None:
    with pytest.raises(LogError, match=f"ends at seqno {LAST + 1}"):
        store.put(epoch(LAST + 1))


def test_what_is_acknowledged_may_be_acknowledged_again(store: Store) -> None:
    store.put(epoch(LAST))
    for _ in range(2):
        store.acknowledge(0, 20)
    assert store.stats().kept_seqno <= 20
