"""Reading parts of a log: exactly the rows that were asked for, and no work for row groups that are wanted whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.log.row_groups import Footer, Footers, Wanted
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from tests.support.examples import examples
from tests.support.tpcb_log import make_tpcb_log

TRANSACTIONS = 10_000
NAMES = ["seqno", "fragno", "bucket"]

SEQNOS = st.integers(-1, TRANSACTIONS)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> LogReader:
    """40,000 rows, whose values do not compress, in several row groups."""
    url = str(tmp_path_factory.mktemp("row_groups") / "log")
    make_tpcb_log(url, TRANSACTIONS, scale=10, incompressible=True)
    return open_reader(url)


@pytest.fixture(scope="module")
def whole(log: LogReader) -> np.ndarray:
    """Seqno, fragno and bucket of every row."""
    return read(log)


def read(log: LogReader, after_seqno: int = -1, last_seqno: int = LAST_SEQNO, **narrowed: object) -> np.ndarray:
    batches = log.rows(after_seqno, last_seqno, columns=NAMES, **narrowed)  # type: ignore[arg-type]
    table = pa.Table.from_batches(batches, schema=pa.schema([ROWS.field(name) for name in NAMES]))
    rows = np.stack([np.asarray(table.column(name).to_numpy(), dtype=np.int64) for name in NAMES], axis=1)
    return rows[np.lexsort((rows[:, 1], rows[:, 0]))]


@settings(max_examples=examples(100))
@given(
    after=SEQNOS,
    last=SEQNOS,
    buckets=st.none() | st.tuples(st.integers(0, 1023), st.integers(0, 1023)),
    fragno=st.none() | st.integers(0, 3),
)
def test_exactly_what_is_asked_for_is_read(
    log: LogReader, whole: np.ndarray, after: int, last: int, buckets: tuple[int, int] | None, fragno: int | None
) -> None:
    seqnos, fragnos, placed = whole.T
    wanted = (seqnos > after) & (seqnos <= last)
    if buckets is not None:
        wanted &= (placed >= buckets[0]) & (placed <= buckets[1])
    if fragno is not None:
        wanted &= fragnos > fragno
    assert np.array_equal(read(log, after, last, buckets=buckets, after_fragno=fragno), whole[wanted])


def test_of_groups_that_are_wanted_whole_no_row_is_looked_at(
    log: LogReader, whole: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = sum(len(segment.row_groups) for segment in log.state().segments)
    assert groups > 2
    masked: list[int] = []
    original = Wanted.mask

    def mask(wanted: Wanted, rows: pa.Table) -> pa.Array:
        masked.append(rows.num_rows)
        return original(wanted, rows)

    monkeypatch.setattr(Wanted, "mask", mask)
    assert len(read(log)) == len(whole)
    halves = [read(log, buckets=bucket_range(channel, 2)) for channel in range(2)]
    assert sum(map(len, halves)) == len(whole)
    assert not masked
    read(log, after_seqno=0)
    assert 0 < len(masked) <= 4, "the rows of the first transaction lie in so many groups at most"


def test_the_footers_that_were_needed_last_are_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"seqno": [1, 2]}), tmp_path / "file")
    footer = Footer(pq.read_metadata(tmp_path / "file"), frozenset(), ())
    footers = Footers(most=2)
    for path in ("a", "b"):
        footers.keep(path, "1", footer)
    assert footers.get("a", "1") is footer
    assert footers.get("a", "2") is None
    footers.keep("c", "1", footer)
    assert [path for path in "abc" if footers.get(path, "1") is not None] == ["a", "c"]
