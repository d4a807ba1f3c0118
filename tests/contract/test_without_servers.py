"""A pipeline from source to target without a server: both ends are in memory, the log between them lies on disk.

What captures, plans, coordinates and applies is the product's own.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.capture.values import IntoLog
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from tests.support.in_memory.history import CachedLog, History, make_history
from tests.support.in_memory.pipeline import MemoryPipeline
from tests.support.in_memory.rows import rows_of
from tests.support.in_memory.source import MemorySource, SourceData
from tests.support.in_memory.stepped import without_threads
from tests.support.in_memory.turns import Actor
from tests.support.variants import gated
from tests.support.written_log import Change

_MANY_TURNS = 30_000


class Ends:
    """A source that commits what a history says, and the log that is captured from it."""

    def __init__(self, directory: Path, history: History, *, copied: int = 0) -> None:
        """`copied`: the transactions that come before the pipeline, whose rows are copied into its log."""
        self.source = SourceData()
        start = Start.COPY if copied else Start.EMPTY
        self.config = PipelineConfig(pipeline="p", start=start, log_url=str(directory / "captured"))
        self._history = history
        for changes in history.transactions[:copied]:
            self.source.commit(*changes)
        into_log = IntoLog(report=lambda progress: None, cancelled=lambda: False) if copied else None
        Capture(MemorySource(self.source, self.config), self.config).prepare(into_log)
        # What the log holds by now, as transactions of a history.
        self._first, self._copied = copied, _transactions(self.config.log_url)

    def capture(self, first: int, end: int) -> History:
        """Commit these transactions; capture them in small steps. Returns what the log holds so far, as a history."""
        for changes in self._history.transactions[first:end]:
            self.source.commit(*changes)
        until, is_done = self.source.end, False
        while not is_done:
            capturing = Capture(MemorySource(self.source, self.config), self.config)
            for step in capturing.capture(until, max_changes=7, step_changes=2, cancelled=lambda: False):
                is_done = step.done
        log = CachedLog(open_reader(self.config.log_url))
        return History(log, (*self._copied, *self._history.transactions[self._first : end]), self._history.is_unique)


def _transactions(log_url: str) -> tuple[tuple[Change, ...], ...]:
    log, found = open_reader(log_url), defaultdict[int, list[Change]](list)
    for batch in log.rows(NO_SEQNO, log.state().last_seqno, in_order=True):
        for row in rows_of(batch):
            found[row.seqno].append(Change(row.operation, row.id, row.value))
    return tuple(tuple(found[seqno]) for seqno in sorted(found))


def run(pipeline: MemoryPipeline, owner: str, choose: random.Random) -> None:
    """One run: it opens, and two lanes take turns until both are done."""
    opening = pipeline.open(owner)
    _finish([opening], choose)
    assert opening.error is None, opening.error
    lanes = [pipeline.lane(0), pipeline.lane(1)]
    _finish(lanes, choose)
    assert [lane.error for lane in lanes] == [None, None]
    pipeline.move_time(1000)


def _finish(actors: list[Actor], choose: random.Random) -> None:
    for _ in range(_MANY_TURNS):
        running = [actor for actor in actors if actor.is_running]
        if not running:
            return
        choose.choice(running).turn()
    raise AssertionError([actor.place for actor in actors])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_source_commits_is_in_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, channels: int
) -> None:
    """After each commit at the target its rows are those of the source at the channels' positions."""
    without_threads(monkeypatch)
    written, choose = make_history(tmp_path, seed), random.Random(seed)
    ends = Ends(tmp_path, written)
    half = len(written.transactions) // 2
    pipeline = MemoryPipeline(ends.capture(0, half), channels=channels, unit_bytes=40, in_one_database=True)
    run(pipeline, "first", choose)
    assert pipeline.target.rows == ends.source.rows
    assert pipeline.history.rows == written.rows[: len(pipeline.history.rows)]

    pipeline.extend(ends.capture(half, len(written.transactions)))
    run(pipeline, "second", choose)
    assert set(pipeline.seqnos) == {written.last_seqno}
    assert pipeline.target.rows == ends.source.rows == written.states[written.last_seqno]
    assert pipeline.history.rows == written.rows


@gated
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_were_there_before_are_copied_through_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Into a target that is never asked whether it can copy; the laws hold at each of its commits."""
    without_threads(monkeypatch)
    written, choose = make_history(tmp_path, seed), random.Random(seed)
    third = len(written.transactions) // 3
    ends = Ends(tmp_path, written, copied=third)
    pipeline = MemoryPipeline(ends.capture(third, 2 * third), channels=3, unit_bytes=40, in_one_database=True)
    run(pipeline, "first", choose)
    assert pipeline.target.rows == ends.source.rows == written.states[2 * third - 1]
    pipeline.extend(ends.capture(2 * third, len(written.transactions)))
    run(pipeline, "second", choose)
    assert pipeline.target.rows == ends.source.rows == written.states[written.last_seqno]
