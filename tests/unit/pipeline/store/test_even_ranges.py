"""Bucket ranges that hold about as many rows each, whichever buckets are hot."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.store.even_ranges import even_ranges

counts = arrays(np.int64, BUCKET_COUNT, elements=st.integers(0, 1000), fill=st.sampled_from([0, 3]))


@given(rows=counts, parts=st.integers(2, 9))
def test_every_bucket_lies_in_one_range_and_none_is_larger_than_its_share_and_a_bucket(
    rows: np.ndarray, parts: int
) -> None:
    ranges = even_ranges(rows, parts)
    assert len(ranges) <= parts
    found = [bucket for first, last in ranges for bucket in range(first, last + 1)]
    assert found == (list(range(BUCKET_COUNT)) if ranges else [])
    largest = max((rows[first : last + 1].sum() for first, last in ranges), default=rows.sum())
    assert largest <= 1.2 * rows.sum() / parts + 2 * rows.max()


def test_even_rows_are_cut_where_channels_and_row_groups_are() -> None:
    rows = np.random.default_rng(1).poisson(600, BUCKET_COUNT)
    assert even_ranges(rows, 4) == ((0, 255), (256, 511), (512, 767), (768, 1023))


def test_one_hot_channel_is_divided() -> None:
    rows = np.full(BUCKET_COUNT, 10)
    rows[256:512] = 1000
    ranges = even_ranges(rows, 4)
    sizes = [rows[first : last + 1].sum() for first, last in ranges]
    assert max(sizes) < 1.1 * min(sizes)


def test_one_bucket_with_everything_is_not_divided() -> None:
    rows = np.zeros(BUCKET_COUNT, dtype=np.int64)
    rows[77] = 1_000_000
    assert even_ranges(rows, 4) == ()
