"""The interleavings are sharp: a line that keeps a law is broken, and one of them then breaks a law, or does not end.

What is not here positions protect anyway: a line that spares work that would be refused, or done again, in vain. Nor is
a line that takes more interleavings than a test has time for: that a merge point takes only what is fed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis.errors import FlakyFailure

from airflow_parallel_apply.pipeline.apply.batch import ChannelClaim, require_reached
from airflow_parallel_apply.pipeline.apply.committer.channel import ChannelCommitter
from airflow_parallel_apply.pipeline.apply.lane import Lane
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.coordinate.coordinator import Coordinator
from airflow_parallel_apply.pipeline.coordinate.feeding import Feeder
from airflow_parallel_apply.pipeline.coordinate.merge_points import MergePoints
from airflow_parallel_apply.pipeline.coordinate.recovery import Recovery
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.broken import broken
from tests.support.in_memory.interleavings import counts, run_machine
from tests.support.in_memory.stepped import without_threads


@dataclass(frozen=True, kw_only=True)
class Line:
    """`keeps`: what would be lost with it."""

    keeps: str
    function: Callable[..., Any]
    line: str
    instead: str = ""


LINES: Final = (
    Line(
        keeps="a head above a failure is parked",
        function=Lane._serve_channel,
        line="if state.fails_below(work.first_seqno):",
        instead="if False:",
    ),
    Line(
        keeps="a unit ends below a failure",
        function=ChannelClaim.batch,
        line="is_held_up(work.first_seqno) or ",
    ),
    Line(
        keeps="a first unit ends below a failure",
        function=ChannelCommitter.begin,
        line="is_held_up=state.fails_below",
        instead="is_held_up=lambda seqno: False",
    ),
    Line(
        keeps="a next unit is begun unless it is held up",
        function=Coordinator.finish,
        line="if state.holds_up(ChannelWork.of_task(task).first_seqno for task in then):",
        instead="if False:",
    ),
    Line(
        keeps="a unit begins at its channel's position",
        function=require_reached,
        line="if seqno < needed:",
        instead="if False:",
    ),
    Line(
        keeps="a channel is taken under a claim that was proved",
        function=LaneContext.take,
        line="self.renewer.exchange(CLAIM, self._renewed)",
        instead="pass",
    ),
    Line(
        keeps="a barrier waits for all channels",
        function=Coordinator.arrive,
        line='len(arrived) == barrier.value["channels"]',
        instead="arrived",
    ),
    Line(
        keeps="a merge point waits for units under way",
        function=MergePoints.gather,
        line="change=free,",
    ),
    Line(
        keeps="no branch is begun while channels merge",
        function=Lane._serve_channel,
        line="elif state.merging is not None:",
        instead="elif False:",
    ),
    Line(
        keeps="nothing is fed while channels merge",
        function=Feeder.fed,
        line=" or state.merging is not None",
    ),
    Line(
        keeps="a merge point lets all channels go on",
        function=MergePoints.close,
        line=", *(_freed(head) for head in freed)",
    ),
    Line(
        keeps="what a target has lost is fed anew",
        function=Recovery.recover,
        line="if state.phase is Phase.DRAINED:",
        instead="if True:",
    ),
    Line(
        keeps="an idle lane feeds what a dead one did not",
        function=Lane.run,
        line="self._context.retrying(self._context.coordinator.feed)",
        instead="pass",
    ),
)


_INTERLEAVINGS: Final = 2_000
_SHOWN: Final = (AssertionError, FlakyFailure, FatalError)
"""A law that is broken, or a step that the coordinator does not know."""


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.keeps.replace(" ", "_"))
def test_an_interleaving_shows_that_a_line_is_broken(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    counts.update(dict.fromkeys(counts, 0))
    with broken(line.function, line.line, line.instead), pytest.raises(_SHOWN) as found:
        run_machine(_INTERLEAVINGS, is_shrunk=False)
    with capsys.disabled():
        print(f"\n{line.keeps}: after {counts['interleavings']}: {str(found.value)[:100]}", flush=True)
