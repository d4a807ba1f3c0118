"""Promises of every encoder: what is read is what was written, whatever the number of workers."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.encode.decode import decoded
from airflow_parallel_apply.pipeline.encode.polarity import OPERATION_FIELD
from airflow_parallel_apply.pipeline.encode.pool import PIECES_AHEAD, Pool
from airflow_parallel_apply.pipeline.encode.protocol import Encoder
from airflow_parallel_apply.pipeline.encode.ranges import cursors
from airflow_parallel_apply.pipeline.encode.stream import write_by_polarity, write_stream
from airflow_parallel_apply.pipeline.errors import EncodeError
from tests.contract.encoders import ENCODERS, ROWS, SCHEMA, read, rows_of
from tests.support.examples import examples
from tests.support.variants import gated

WORKERS = (1, 2, 4, 16)
JOINABLE = [name for name, make in ENCODERS.items() if make(SCHEMA).is_joinable]
KEYED = pa.schema([("k", pa.int64()), ("v", pa.string())])
OUTPUT = KEYED.append(OPERATION_FIELD)


class Slow:
    """An encoder whose workers are held up at random."""

    def __init__(self, encoder: Encoder, seed: int) -> None:
        self._encoder = encoder
        self._random = random.Random(seed)
        self.suffix, self.is_joinable = encoder.suffix, encoder.is_joinable
        self.head, self.tail = encoder.head, encoder.tail

    def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        for piece in self._encoder.body(batches):
            time.sleep(self._random.choice([0, 0, 0.0002, 0.002]))
            yield piece


def file_of(encoder: Encoder, batches: Iterable[pa.RecordBatch]) -> bytes:
    return b"".join([encoder.head(), *encoder.body(batches), encoder.tail()])


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=examples(100))
@given(rows=ROWS)
def test_a_file_is_read_as_it_was_written(name: str, rows: list[dict[str, Any]]) -> None:
    encoder = ENCODERS[name](SCHEMA)
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    assert rows_of(read(encoder, file_of(encoder, [batch]), SCHEMA)) == rows_of(batch.to_pylist())
    back = decoded(f"a{encoder.suffix}", file_of(encoder, [batch]), SCHEMA, batch_rows=3)
    assert rows_of([row for part in back for row in part.to_pylist()]) == rows_of(batch.to_pylist())
    # Also of several batches, and of a part of one.
    parts = [batch.slice(0, 1), batch.slice(1)]
    assert rows_of(read(encoder, file_of(encoder, parts), SCHEMA)) == rows_of(batch.to_pylist())


@pytest.mark.parametrize("name", ENCODERS)
def test_a_file_without_rows_is_a_file(name: str) -> None:
    encoder = ENCODERS[name](SCHEMA)
    assert read(encoder, file_of(encoder, []), SCHEMA) == []


@gated
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=examples(20))
@given(keys=st.lists(st.none() | st.integers(0, 30), max_size=60), seed=st.integers(0, 100))
def test_any_number_of_workers_writes_the_same_rows_and_those_of_a_key_in_order(
    name: str, workers: int, keys: list[int | None], seed: int
) -> None:
    rows = pa.table({"k": keys, "v": [str(place) for place in range(len(keys))]}, schema=KEYED)
    encoder = Slow(ENCODERS[name](KEYED), seed)
    found: list[dict[str, Any]] = []
    pool = Pool(threads=workers)
    if encoder.is_joinable:
        content: list[bytes] = []
        write_stream(encoder, [rows], ["k"], pool=pool, write=content.append)
        found = read(encoder, b"".join(content), KEYED)
    else:
        files: list[bytes] = []
        works = (
            lambda cursor=cursor: iter([file_of(encoder, cursor.open())]) for cursor in cursors(rows, ["k"], workers)
        )
        pool.ordered(works, files.append)
        found = [row for file in files for row in read(encoder, file, KEYED)]
    assert sorted(int(row["v"]) for row in found) == list(range(len(keys)))
    of_key: dict[int | None, list[int]] = {}
    for row in found:
        assert row["k"] == keys[int(row["v"])]
        of_key.setdefault(row["k"], []).append(int(row["v"]))
    assert all(places == sorted(places) for places in of_key.values())


@gated
@pytest.mark.parametrize("keys", [["k"], []])
@pytest.mark.parametrize("name", JOINABLE)
def test_no_range_of_a_stream_has_more_pieces_than_may_wait(name: str, keys: list[str]) -> None:
    """Else a worker stands still until all ranges before its own are taken, and the second one gains nothing."""
    counts: list[int] = []

    class Counted(Slow):
        def body(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
            found = list(self._encoder.body(batches))
            counts.append(len(found))
            yield from found

    # As a log gives them: in small batches, with keys that are all over them.
    batch = pa.RecordBatch.from_pydict({"k": list(range(1_000)), "v": ["a"] * 1_000}, schema=KEYED)
    rows = pa.Table.from_batches([batch] * 150)
    content: list[bytes] = []
    write_stream(Counted(ENCODERS[name](KEYED), 0), [rows], keys, pool=Pool(threads=2), write=content.append)
    assert len(counts) > 2
    assert max(counts) <= PIECES_AHEAD


@gated
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", JOINABLE)
@settings(max_examples=examples(20))
@given(weights=st.lists(st.integers(-2, 2), max_size=40), seed=st.integers(0, 100))
def test_no_insertion_comes_before_the_last_deletion(name: str, workers: int, weights: list[int], seed: int) -> None:
    numbers = list(range(len(weights)))
    rows = pa.table(
        {"k": numbers, "v": [str(number) for number in numbers], "_weight": weights},
        schema=KEYED.append(pa.field("_weight", pa.int64())),
    )
    encoder = Slow(ENCODERS[name](OUTPUT), seed)
    content: list[bytes] = []
    write_by_polarity(encoder, rows, pool=Pool(threads=workers), write=content.append)
    found = [(row["_operation"], row["k"]) for row in read(encoder, b"".join(content), OUTPUT)]
    deletions = [("delete", number) for number, weight in enumerate(weights) for _ in range(-weight)]
    insertions = [("insert", number) for number, weight in enumerate(weights) for _ in range(weight)]
    assert sorted(found[: len(deletions)]) == deletions
    assert sorted(found[len(deletions) :]) == insertions


@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in JOINABLE])
def test_files_with_one_body_are_not_written_by_several(name: str) -> None:
    with pytest.raises(EncodeError, match="each range"):
        write_stream(ENCODERS[name](KEYED), [], ["k"], pool=Pool(threads=2), write=lambda piece: None)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_single_record_takes_any_number_of_workers(name: str) -> None:
    encoder = ENCODERS[name](KEYED)
    rows = pa.table({"k": [1], "v": ["a"]}, schema=KEYED)
    assert [
        file for cursor in cursors(rows, ["k"], 16) for file in read(encoder, file_of(encoder, cursor.open()), KEYED)
    ] == [{"k": 1, "v": "a"}]
