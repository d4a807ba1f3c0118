"""Row groups that several channels' streams share: each is decoded once, and nothing of it stays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.row_groups import Wanted
from airflow_parallel_apply.pipeline.log.shared_groups import SharedGroups

ROWS = 64
GROUP = pa.table({"seqno": range(ROWS), "fragno": [0] * ROWS, "bucket": range(ROWS)})


def part(first: int, last: int) -> Wanted:
    return Wanted(after_seqno=-1, last_seqno=ROWS, buckets=(first, last))


class Decoding:
    """Counts; waits for `may_end` where a test says so."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self) -> pa.Table:
        self.count += 1
        assert self.may_end.wait(120)
        return GROUP


def test_streams_side_by_side_have_a_group_decoded_once_and_let_go_of_it() -> None:
    shared, decode = SharedGroups(2**20), Decoding()
    decode.may_end.clear()
    with ThreadPoolExecutor(4) as pool:
        taking = [pool.submit(shared.take, "group", part(16 * number, 16 * number + 15), decode) for number in range(4)]
        decode.may_end.set()
        found = [one.result().column("bucket").to_pylist() for one in taking]
    assert found == [list(range(16 * number, 16 * number + 16)) for number in range(4)]
    assert decode.count == 1
    assert shared.kept_bytes == 0


def test_a_group_of_which_nobody_takes_the_rest_goes_when_others_need_the_memory() -> None:
    shared, decode = SharedGroups(2 * GROUP.nbytes), Decoding()
    for key in range(5):
        shared.take(key, part(0, 7), decode)
        assert shared.kept_bytes <= 2 * GROUP.nbytes
    for key in (4, 3):
        assert shared.take(key, part(8, 15), decode).num_rows == 8
    assert decode.count == 5
    shared.take(0, part(8, 15), decode)
    assert decode.count == 6, "that one had gone"


def test_a_group_that_cannot_be_decoded_is_everybodys_error_and_is_tried_again() -> None:
    shared = SharedGroups(2**20)

    def broken() -> pa.Table:
        raise LogError("torn")

    take: Callable[..., pa.Table] = partial(shared.take, "group", part(0, 7))
    for _ in range(2):
        with pytest.raises(LogError, match="torn"):
            take(broken)
    assert take(Decoding()).num_rows == 8
