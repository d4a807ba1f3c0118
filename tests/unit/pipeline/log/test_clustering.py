from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.log.clustering import (
    GROUP_FILE_BYTES,
    GROUP_MEMORY_BYTES,
    MAX_GROUPS,
    cluster,
)
from tests.support.examples import examples

MANY = GROUP_FILE_BYTES * MAX_GROUPS


def test_even_buckets_make_64_groups_of_16_buckets() -> None:
    bucket = np.random.default_rng(1).integers(0, 1024, 200_000).astype(np.int32)
    groups, _ = cluster(bucket, bucket_count=1024, file_bytes=MANY, memory_bytes=0)
    assert [(group.first_bucket, group.last_bucket) for group in groups] == [
        (first, first + 15) for first in range(0, 1024, 16)
    ]


def test_a_small_file_has_one_group() -> None:
    groups, order = cluster(
        np.arange(1024, dtype=np.int32)[::-1], bucket_count=1024, file_bytes=1000, memory_bytes=1000
    )
    assert [(group.first_bucket, group.last_bucket, group.row_count) for group in groups] == [(0, 1023, 1024)]
    assert order.tolist() == list(range(1024))


def test_values_that_compress_well_make_groups_by_the_memory_they_take() -> None:
    bucket = np.arange(100_000, dtype=np.int32) % 1024
    groups, _ = cluster(bucket, bucket_count=1024, file_bytes=1000, memory_bytes=8 * GROUP_MEMORY_BYTES)
    assert [group.row_count for group in groups] == pytest.approx([100_000 / 8] * 8, rel=0.01)


def test_a_bucket_with_half_the_rows_is_split_and_shares_its_groups_with_no_other() -> None:
    bucket = np.where(np.arange(100_000) % 2, 7, np.arange(100_000) % 1024).astype(np.int32)
    groups, _ = cluster(bucket, bucket_count=1024, file_bytes=MANY, memory_bytes=0)
    hot = [group for group in groups if group.first_bucket <= 7 <= group.last_bucket]
    assert len(hot) > 10
    assert all(group.first_bucket == group.last_bucket for group in hot)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 63), max_size=300), st.integers(0, 20))
def test_every_row_lies_in_its_groups_range_and_rows_of_a_group_keep_their_order(
    buckets: list[int], wanted: int
) -> None:
    bucket = np.array(buckets, dtype=np.int32)
    groups, order = cluster(bucket, bucket_count=64, file_bytes=wanted * GROUP_FILE_BYTES, memory_bytes=0)
    assert sorted(order.tolist()) == list(range(len(buckets)))
    start = 0
    for group in groups:
        members = order[start : start + group.row_count]
        start += group.row_count
        assert group.row_count > 0
        assert members.tolist() == sorted(members.tolist())
        assert all(group.first_bucket <= bucket[row] <= group.last_bucket for row in members)
    assert start == len(buckets)
    for before, after in pairwise(groups):
        same = (before.first_bucket, before.last_bucket) == (after.first_bucket, after.last_bucket)
        assert before.last_bucket < after.first_bucket or (same and before.first_bucket == before.last_bucket) or same
