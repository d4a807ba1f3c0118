"""The planner's promises on random histories, against a plain reading of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Mark, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.epoch import EpochKind, Reason
from airflow_parallel_apply.pipeline.partition.channel import bucket_range, channel_of
from airflow_parallel_apply.pipeline.partition.key import buckets as buckets_of
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.planner import plan_epochs
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits, Transactions, cut_spans
from tests.support.written_log import Change, append, make_log


@dataclass
class HistoryLog:
    """The reads that the planner makes, from a list of (buckets, marks), one a transaction. `relations`: the first is
    that of all rows, which are insertions in even buckets and updates in odd ones.
    """

    history: Sequence[tuple[Sequence[int], Sequence[Mark]]]
    relations: tuple[Relation, ...] = ()

    def state(self) -> LogState:
        return LogState(
            last_seqno=len(self.history) - 1,
            captured_offset=0,
            last_commit_time=None,
            segments=(),
            relations=self.relations,
        )

    def transactions(self, after_seqno: int, last_seqno: int) -> pa.Table:
        chosen = range(after_seqno + 1, last_seqno + 1)
        return pa.table(
            {
                "seqno": pa.array(chosen, pa.int64()),
                "row_count": pa.array([len(self.history[seqno][0]) for seqno in chosen], pa.int64()),
                "byte_count": pa.array([10 * len(self.history[seqno][0]) for seqno in chosen], pa.int64()),
                "end_offset": pa.array([10 * seqno + 9 for seqno in chosen], pa.int64()),
                "commit_time": pa.array([committed_at(seqno) for seqno in chosen], pa.timestamp("us", tz="UTC")),
                "marks": pa.array([list(self.history[seqno][1]) for seqno in chosen], pa.list_(pa.string())),
            }
        )

    def rows(self, after_seqno: int, last_seqno: int, *, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for seqno in range(after_seqno + 1, last_seqno + 1):
            buckets = self.history[seqno][0]
            found = {
                "seqno": pa.array([seqno] * len(buckets), pa.int64()),
                "bucket": pa.array(buckets, pa.int32()),
                "relation_id": pa.array([0] * len(buckets), pa.int32()),
                "operation": pa.array(["U" if bucket % 2 else "I" for bucket in buckets], pa.string()),
                "width": pa.nulls(len(buckets), pa.int32()),
            }
            yield pa.record_batch({name: found[name] for name in columns})


def committed_at(seqno: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seqno)


transactions = st.tuples(
    st.lists(st.integers(0, 1023), min_size=1, max_size=6),
    st.sampled_from([(), (), (), (), (Mark.TRUNCATE,), (Mark.MESSAGE, Mark.TRUNCATE), (Mark.KEY_UNSENT,)]),
)


@settings(deadline=None)
@given(
    history=st.lists(transactions, max_size=40),
    channels=st.integers(1, 64),
    max_changes=st.integers(1, 20),
    max_transactions=st.integers(1, 20),
    max_seconds=st.integers(0, 40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
)
def test_every_transaction_is_in_one_epoch_and_critical_ones_in_serial_ones(
    history: list[tuple[list[int], tuple[Mark, ...]]],
    channels: int,
    max_changes: int,
    max_transactions: int,
    max_seconds: int,
    cuts: list[int],
) -> None:
    log = HistoryLog(history)
    limits = EpochLimits(
        max_changes=max_changes,
        max_bytes=10**9,
        max_transactions=max_transactions,
        max_duration=timedelta(seconds=max_seconds),
    )
    epochs = plan_epochs(
        log,  # type: ignore[arg-type]
        after_seqno=NO_SEQNO,
        last_seqno=len(history) - 1,
        first_number=7,
        routing=Routing(channels=channels),
        limits=limits,
        cuts=cuts,
    )
    covered = [seqno for epoch in epochs for seqno in range(epoch.first_seqno, epoch.last_seqno + 1)]
    assert covered == list(range(len(history)))
    assert [epoch.number for epoch in epochs] == list(range(7, 7 + len(epochs)))
    for epoch in epochs:
        inside = [history[seqno] for seqno in range(epoch.first_seqno, epoch.last_seqno + 1)]
        critical = [marks for _, marks in inside if marks]
        assert (epoch.kind is EpochKind.SERIAL) == bool(critical)
        assert (epoch.reason is Reason.DENSE_BARRIERS) == (len(critical) > 1)
        assert len(critical) != 1 or len(inside) == 1
        expected, insertions = [0] * channels, [0] * channels
        for buckets, _ in inside:
            for bucket in buckets:
                expected[bucket * channels // 1024] += 1
                insertions[bucket * channels // 1024] += bucket % 2 == 0
        assert (list(epoch.rows), list(epoch.inserts or ())) == (expected, insertions)
        assert epoch.is_insertions == (expected == insertions)
        assert (epoch.end_offset, epoch.end_time) == (10 * epoch.last_seqno + 9, committed_at(epoch.last_seqno))
        assert len(inside) == 1 or epoch.row_count <= max_changes
        assert not any(epoch.first_seqno <= cut < epoch.last_seqno for cut in cuts)
        # A channel without rows has a sync at least so often. A transaction commits each second.
        assert epoch.kind is EpochKind.SERIAL or len(inside) <= min(max_transactions, max_seconds + 1)


def spans_of(*commit_times: int) -> list[tuple[int, Reason]]:
    """Last index and reason of the epochs of transactions that commit at these seconds; an epoch lasts 60 at most."""
    ones = np.ones(len(commit_times), dtype=np.int64)
    found = Transactions(
        seqnos=np.arange(len(commit_times)),
        row_counts=ones,
        byte_counts=ones,
        image_counts=ones,
        commit_times=np.array(commit_times) * 1_000_000,
        critical={},
    )
    limits = EpochLimits(max_changes=100, max_bytes=100, max_duration=timedelta(minutes=1))
    return [(span.last, span.reason) for span in cut_spans(found, limits, ())]


def test_an_epoch_ends_when_its_transactions_would_span_too_much_time() -> None:
    assert spans_of(0, 30, 60, 61, 121, 122, 500) == [
        (2, Reason.TIME),
        (4, Reason.TIME),
        (5, Reason.TIME),
        (6, Reason.END),
    ]


def test_a_clock_that_goes_backwards_ends_no_epoch() -> None:
    assert spans_of(1000, 10, 20, 300, 1050, 1061) == [(4, Reason.TIME), (5, Reason.END)]


def reasons_of(
    *row_counts_and_marks: tuple[int, tuple[Mark, ...]],
    max_changes: int = 100_000,
    relations: tuple[Relation, ...] = (),
) -> list[Reason]:
    history = [([seqno % 1024] * rows, marks) for seqno, (rows, marks) in enumerate(row_counts_and_marks)]
    epochs = plan_epochs(
        HistoryLog(history, relations),  # type: ignore[arg-type]
        after_seqno=NO_SEQNO, last_seqno=len(history) - 1, first_number=0, routing=Routing(channels=4),
        limits=EpochLimits(max_changes=100_000, max_bytes=10**9),
    )  # fmt: skip
    return [epoch.reason for epoch in epochs]


CRITICAL = (1, (Mark.TRUNCATE,))


def test_dense_barriers_are_one_epoch_with_what_is_between_and_around_them() -> None:
    history = (100, ()), CRITICAL, (300, ()), (300, ()), CRITICAL, CRITICAL, (50, ())
    assert reasons_of(*history) == [Reason.DENSE_BARRIERS]


def test_a_barrier_among_much_else_stays_alone() -> None:
    much = (3_000, ())
    assert reasons_of(much, CRITICAL, much, CRITICAL, much) == [
        Reason.BEFORE_CRITICAL, Reason.TRUNCATE, Reason.BEFORE_CRITICAL, Reason.TRUNCATE, Reason.END,
    ]  # fmt: skip
    assert reasons_of((10, ()), CRITICAL, (10, ())) == [Reason.BEFORE_CRITICAL, Reason.TRUNCATE, Reason.END]


def test_a_large_critical_transaction_stays_alone_to_be_applied_in_sets() -> None:
    assert reasons_of(CRITICAL, CRITICAL, (5_000, (Mark.TRUNCATE,)), CRITICAL, CRITICAL) == [
        Reason.DENSE_BARRIERS, Reason.TRUNCATE, Reason.DENSE_BARRIERS,
    ]  # fmt: skip


def test_many_changes_without_a_key_between_barriers_are_left_to_a_merge() -> None:
    """A replay would look through the whole table for each of them."""
    bag = Relation(relation_id=0, schema="public", table="bag", replica_identity=ReplicaIdentity.FULL, columns=())
    history = (CRITICAL, (400, ()), CRITICAL, (20, ()), CRITICAL)
    assert reasons_of(*history, relations=(bag,)) == [
        Reason.TRUNCATE, Reason.BEFORE_CRITICAL, Reason.DENSE_BARRIERS,
    ]  # fmt: skip
    assert reasons_of(*history, relations=(replace(bag, replica_identity=ReplicaIdentity.KEY),)) == [
        Reason.DENSE_BARRIERS
    ]


def test_dense_barriers_without_an_end_are_bounded_epochs() -> None:
    assert reasons_of(*[CRITICAL, (999, ())] * 100) == [Reason.DENSE_BARRIERS] * 10


def test_bytes_close_an_epoch_too() -> None:
    log = HistoryLog([((1,), ())] * 10)
    limits = EpochLimits(max_changes=1000, max_bytes=30)
    epochs = plan_epochs(
        log,  # type: ignore[arg-type]
        after_seqno=NO_SEQNO, last_seqno=9, first_number=0, routing=Routing(channels=2), limits=limits,
    )  # fmt: skip
    assert [(epoch.first_seqno, epoch.last_seqno, epoch.reason) for epoch in epochs] == [
        (0, 2, Reason.BYTES), (3, 5, Reason.BYTES), (6, 8, Reason.BYTES), (9, 9, Reason.END),
    ]  # fmt: skip


def test_a_channels_bytes_are_those_of_its_rows_where_the_log_has_their_widths(tmp_path: Path) -> None:
    """Not a share by count: the wide rows of one key would pass a unit's bound many times over."""
    url = str(tmp_path / "log")
    make_log(url)
    narrow, wide = 0, next(key for key in range(9) if channel_at(key) != channel_at(0))
    append(url, 0, [[Change("I", narrow, "v")], [Change("I", wide, "v")]] * 5 + [[Change("U", wide, "v" * 9_000)]] * 10)
    limits = EpochLimits(max_changes=1000, max_bytes=2**20)
    (epoch,) = plan_epochs(
        open_reader(url), after_seqno=-1, last_seqno=19, first_number=0, routing=Routing(channels=2), limits=limits
    )
    assert epoch.rows[channel_at(wide)] == 15
    assert epoch.bytes_[channel_at(wide)] == 10 * 9_002 + 5 * 3
    assert epoch.bytes_[channel_at(narrow)] == 5 * 3


def channel_at(key: int) -> int:
    return int(channel_of(buckets_of("public.t", pa.array([str(key)])), 2)[0])


def test_bytes_of_files_without_widths_are_shared_by_rows() -> None:
    log = HistoryLog([((1, 1000), ()), ((1, 1), ())])
    limits = EpochLimits(max_changes=1000, max_bytes=1000)
    (epoch,) = plan_epochs(
        log,  # type: ignore[arg-type]
        after_seqno=NO_SEQNO, last_seqno=1, first_number=0, routing=Routing(channels=2), limits=limits,
    )  # fmt: skip
    assert (epoch.rows, epoch.bytes_) == ((3, 1), (30, 10))


def test_planning_in_two_calls_numbers_on() -> None:
    log = HistoryLog([((1,), ())] * 4)
    limits = EpochLimits(max_changes=1000, max_bytes=1000)
    (epoch,) = plan_epochs(
        log,  # type: ignore[arg-type]
        after_seqno=1, last_seqno=3, first_number=5, routing=Routing(channels=1), limits=limits,
    )  # fmt: skip
    assert (epoch.number, epoch.first_seqno, epoch.last_seqno) == (5, 2, 3)


@pytest.mark.parametrize("channels", range(1, 65))
def test_channels_are_contiguous_disjoint_and_complete_ranges_of_buckets(channels: int) -> None:
    import numpy as np

    buckets = np.arange(1024)
    found = channel_of(buckets, channels)
    for channel in range(channels):
        first, last = bucket_range(channel, channels)
        assert list(buckets[found == channel]) == list(range(first, last + 1))


def test_a_plan_of_an_earlier_release_is_read() -> None:
    assert Reason("dense fences") is Reason.DENSE_BARRIERS
