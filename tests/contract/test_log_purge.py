"""Purging takes a log's beginning away, whole transactions at a time, and leaves everything else as it was."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log import WriterOptions, directory, open_reader
from airflow_parallel_apply.pipeline.log.protocol import WriterFenced
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.log.writing import create_log, open_writer
from airflow_parallel_apply.pipeline.plan.bounds import boundary, last_seqno_at
from tests.log_batches import IDENTITY, START, files_of, history
from tests.support.examples import examples
from tests.support.variants import gated

END = 2**62
SMALL = WriterOptions(segment_file_bytes=2000, small_file_bytes=1, buffer_bytes=6000)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Three segments."""
    return filled(tmp_path / "log", [10, 10, 10], options=WriterOptions())


def filled(path: Path, commits: list[int], *, rows: int = 3, options: WriterOptions = SMALL) -> str:
    """One commit for each number of transactions."""
    create_log(str(path), IDENTITY)
    next_seqno = 0
    for count in commits:
        writer = open_writer(str(path), options=options)
        writer.append(*history(next_seqno, count, rows=rows))
        next_seqno += count
        writer.commit(next_seqno)
    return str(path)


def seqnos(url: str, after: int) -> list[int]:
    rows = open_reader(url).rows(after, END, columns=["seqno"], in_order=True)
    return sorted(set(pa.Table.from_batches(rows, schema=pa.schema([ROWS.field("seqno")])).column(0).to_pylist()))


def test_what_lies_below_goes_and_what_lies_above_stays(url: str) -> None:
    before = open_reader(url).state()
    gone = open_writer(url).purge(14)
    assert [segment.last_seqno for segment in gone] == [9]
    state = open_reader(url).state()
    assert (state.purged_seqno, state.last_seqno, state.captured_offset) == (9, 29, 30)
    assert state.segments == before.segments[1:]
    assert state.last_commit_time == before.last_commit_time
    assert seqnos(url, 9) == list(range(10, 30))
    assert open_writer(url).purge(14) == ()


def test_who_needs_what_was_purged_is_told_which_transactions(url: str) -> None:
    open_writer(url).purge(14)
    reader = open_reader(url)
    for read in (
        lambda: list(reader.rows(8, 20)),
        lambda: reader.row_files(-1, 20),
        lambda: reader.transactions(3, 4),
    ):
        with pytest.raises(LogError, match="to 9 were purged"):
            read()
    assert reader.transactions(9, 20).num_rows == 11
    assert reader.row_files(5, 5) == ()


def test_a_log_that_was_purged_to_its_end_goes_on_where_it_was(url: str) -> None:
    assert len(open_writer(url).purge(END)) == 3
    assert open_reader(url).state().purged_seqno == 29
    writer = open_writer(url)
    assert (writer.state().last_seqno, writer.state().captured_offset) == (29, 30)
    writer.append(*history(30, 5))
    writer.commit(40)
    assert seqnos(url, 29) == list(range(30, 35))
    assert open_reader(url).transactions(29, END).num_rows == 5


def test_files_stay_for_readers_that_scan_them_and_go_when_their_grace_is_over(url: str) -> None:
    now = datetime.now(UTC)
    reader = open_reader(url)
    scanning = reader.rows(-1, END, columns=["seqno"])
    first = next(scanning)
    paths = reader.row_files(-1, 9)
    open_writer(url).purge(END)
    assert all(Path(path).exists() for path in paths)
    assert first.num_rows + sum(batch.num_rows for batch in scanning) == 90
    assert len(files_of(url)) == 6
    open_writer(url, clock=lambda: now + timedelta(minutes=11))
    assert files_of(url) == set()


def test_what_is_younger_than_asked_for_is_kept(url: str) -> None:
    assert len(open_writer(url).purge(END, older_than=START + timedelta(seconds=19))) == 1
    assert open_reader(url).state().purged_seqno == 9


@gated
def test_checkpoints_remember_what_was_purged(tmp_path: Path) -> None:
    url = filled(tmp_path / "log", [2] * 40)
    open_writer(url).purge(50)
    purged = open_reader(url).state().purged_seqno
    assert purged == 49
    for number in range(40):
        writer = open_writer(url, options=SMALL)
        writer.commit(1000 + number)
    assert open_reader(url).state().purged_seqno == purged
    assert open_reader(url).state().purged_time == START + timedelta(seconds=49)
    assert seqnos(url, purged) == list(range(50, 80))


def test_a_time_of_what_was_purged_lies_below_every_position(url: str) -> None:
    before = {second: boundary(open_reader(url), START + timedelta(seconds=second)) for second in (3, 9, 10, 25)}
    assert list(before.values()) == [3, 9, 10, 25]
    open_writer(url).purge(14)
    log = open_reader(url)
    assert boundary(log, START + timedelta(seconds=3)) == boundary(log, START + timedelta(seconds=9)) == 9
    assert boundary(log, START + timedelta(seconds=10)) == 10
    assert boundary(log, START + timedelta(seconds=25)) == 25
    open_writer(url).purge(END)
    assert boundary(open_reader(url), START + timedelta(seconds=25)) == 29
    assert last_seqno_at(open_reader(url), 5) == 29


def test_of_a_purge_and_a_capture_at_once_one_is_refused_and_nothing_is_lost(url: str) -> None:
    purging, capturing = open_writer(url), open_writer(url)
    capturing.append(*history(30, 5))
    purging.purge(14)
    with pytest.raises(WriterFenced):
        capturing.commit(40)
    late = open_writer(url)
    again = open_writer(url)
    again.append(*history(30, 5))
    again.commit(40)
    with pytest.raises(WriterFenced):
        late.purge(25)
    assert seqnos(url, 9) == list(range(10, 35))


def test_what_was_appended_is_not_purged_away(url: str) -> None:
    writer = open_writer(url)
    writer.append(*history(30, 5))
    with pytest.raises(LogError, match="not committed"):
        writer.purge(END)
    writer.commit(40)
    assert seqnos(url, -1) == list(range(35))


@pytest.mark.parametrize("step", ["before the manifest's name", "after it"])
def test_a_purge_that_dies_leaves_a_log_that_reads_and_goes_on(
    url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object, **__: object) -> Iterator[None]:
        raise Crash

    link = os.link

    def link_and_crash(*arguments: str, **options: bool) -> None:
        link(*arguments, **options)
        raise Crash

    dying = open_writer(url)
    with monkeypatch.context() as patch:
        patch.setattr(directory.os, "link", crash if step.startswith("before") else link_and_crash)
        with pytest.raises(Crash):
            dying.purge(14)
    purged = -1 if step.startswith("before") else 9
    assert open_reader(url).state().purged_seqno == purged
    assert seqnos(url, purged) == list(range(purged + 1, 30))
    writer = open_writer(url)
    writer.append(*history(30, 5))
    writer.commit(40)
    assert seqnos(url, purged) == list(range(purged + 1, 35))


@gated
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commits=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    rows=st.sampled_from([1, 3, 100]),
    through=st.lists(st.integers(-1, 10), min_size=1, max_size=3),
)
def test_whatever_is_purged_everything_above_is_there_and_no_half_transaction_is_shown(
    tmp_path_factory: pytest.TempPathFactory, commits: list[int], rows: int, through: list[int]
) -> None:
    """With 100 rows a transaction lies in several segments."""
    url = filled(tmp_path_factory.mktemp("log") / "log", commits, rows=rows)
    last = sum(commits) - 1
    for seqno in through:
        open_writer(url).purge(seqno)
        state = open_reader(url).state()
        assert state.purged_seqno <= max(min(seqno, last), *through)
        assert state.last_seqno == last
    allowed = min(max(through), last)
    purged = open_reader(url).state().purged_seqno
    assert purged <= allowed
    read = list(open_reader(url).rows(purged, END, columns=["seqno"]))
    counts = Counter(seqno for batch in read for seqno in batch.column("seqno").to_pylist())
    assert counts == dict.fromkeys(range(purged + 1, last + 1), rows)
    assert open_reader(url).transactions(purged, END).column("seqno").to_pylist() == sorted(counts)
