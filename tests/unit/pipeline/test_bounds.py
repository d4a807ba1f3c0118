"""Law 11: a time's boundary is the first seqno whose running maximum of commit times reaches it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.plan.bounds import boundary, gap_before, last_seqno_of_run
from tests.support.examples import examples
from tests.support.written_log import Change, append, make_log

START = datetime(2026, 1, 1, tzinfo=UTC)

seconds = st.integers(min_value=0, max_value=30)
commits = st.lists(seconds, max_size=12)
"""Commit times in seqno order: equal ones, and a clock that goes back."""


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def written(url: str, commit_seconds: Sequence[float], cuts: Sequence[int] = ()) -> LogReader:
    """A log with these commit times; each cut ends a version, and so a segment."""
    make_log(url)
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(commit_seconds)}), len(commit_seconds)]
    for first, end in pairwise(edges):
        if end > first:
            append(
                url,
                first,
                [[Change("I", seqno)] for seqno in range(first, end)],
                times=[at(s) for s in commit_seconds[first:end]],
            )
    return open_reader(url)


@settings(max_examples=examples(60), deadline=None)
@given(
    commit_seconds=commits,
    cuts=st.lists(st.integers(1, 11), max_size=4),
    asked=st.lists(seconds, min_size=2, max_size=4),
)
def test_a_boundary_is_that_of_the_running_maximum_and_monotone(
    commit_seconds: list[int], cuts: list[int], asked: list[int]
) -> None:
    with TemporaryDirectory() as url:
        log = written(url, commit_seconds, cuts)
        running = list(accumulate(commit_seconds, max))
        found = []
        for second in sorted(asked):
            reaching = [seqno for seqno, latest in enumerate(running) if latest >= second]
            assert boundary(log, at(second)) == (reaching[0] if reaching else None)
            found.append(reaching[0] if reaching else len(running))
        assert found == sorted(found)


@settings(max_examples=examples(60), deadline=None)
@given(
    commit_seconds=commits.filter(bool),
    cuts=st.lists(st.integers(1, 11), max_size=4),
    applied=st.integers(-1, 11),
    start=seconds,
)
def test_a_gap_is_what_lies_between_the_applied_and_the_interval(
    commit_seconds: list[int], cuts: list[int], applied: int, start: int
) -> None:
    with TemporaryDirectory() as url:
        log = written(url, commit_seconds, cuts)
        running = list(accumulate(commit_seconds, max))
        inside = [seqno for seqno, latest in enumerate(running) if seqno > applied and latest < start]
        gap = gap_before(log, applied, at(start))
        if not inside:
            assert gap is None
        else:
            assert gap is not None
            assert gap.first_seqno == inside[0] == applied + 1
            assert gap.last_seqno == inside[-1]
            assert (gap.since, gap.until) == (at(running[inside[0]]), at(running[inside[-1]]))


def test_intervals_share_out_a_history_without_rest(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = written(str(tmp_path_factory.mktemp("log")), [1, 1, 7, 3, 7, 12, 5, 12, 29], cuts=[2, 3, 7])
    captured = log.state().captured_offset
    ends = [last_seqno_of_run(log, captured, at(end)) for end in (0, 5, 7, 8, 12, 13, 30)]
    assert ends == [-1, 1, 1, 4, 4, 7, 8]


def test_a_transaction_that_commits_late_belongs_to_the_interval_of_its_commit(tmp_path_factory) -> None:
    # It was open for hours: what counts is its commit, and that follows the commits of others.
    log = written(str(tmp_path_factory.mktemp("log")), [1, 2, 61, 59.999999, 62])
    assert last_seqno_of_run(log, log.state().captured_offset, at(60)) == 1


def test_a_microsecond_decides(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = written(str(tmp_path_factory.mktemp("log")), [59.999999, 60, 60.000001])
    assert boundary(log, at(60)) == 1
    assert boundary(log, at(60).astimezone(tz=None)) == 1


def test_the_offset_decides_where_nothing_came_since(tmp_path_factory: pytest.TempPathFactory) -> None:
    log = written(str(tmp_path_factory.mktemp("log")), [1, 2, 3])
    assert last_seqno_of_run(log, 19, at(60)) == 1
    assert last_seqno_of_run(log, log.state().captured_offset, at(60)) == 2


def test_the_bound_is_known_before_everything_is_captured_once_the_log_reaches_the_time(tmp_path_factory) -> None:
    log = written(str(tmp_path_factory.mktemp("log")), [1, 2, 3])
    far = log.state().captured_offset + 1000
    assert last_seqno_of_run(log, far, at(3)) == 1
    assert last_seqno_of_run(log, far, at(4)) is None
    assert last_seqno_of_run(log, far, None) is None


@pytest.mark.parametrize(("start", "end"), [(at(1), at(1)), (at(2), at(1)), (datetime(2026, 1, 1), at(1))])
def test_an_interval_is_neither_empty_nor_without_a_time_zone(start: datetime, end: datetime) -> None:
    with pytest.raises(ConfigurationError):
        Interval(start=start, end=end)
