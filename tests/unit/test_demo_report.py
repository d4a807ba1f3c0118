"""The demo's pages and words, from made-up runs."""

from __future__ import annotations

import io
from dataclasses import replace

import pendulum
import pytest
from rich.console import Console

from airflow_parallel_apply.demo.airflow_api import TaskInstance
from airflow_parallel_apply.demo.display import Display
from airflow_parallel_apply.demo.report import Outcome, print_report
from airflow_parallel_apply.pipeline.admin.channel_status import ChannelState, ChannelStatus
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus
from airflow_parallel_apply.pipeline.compare import Difference, TableComparison

BEGAN = pendulum.datetime(2026, 1, 1)


EQUAL = TableComparison(
    name="public.pgbench_accounts",
    source_rows=100,
    target_rows=100,
    source_checksum="c0ffee",
    target_checksum="c0ffee",
)
DIFFERENT = replace(
    EQUAL,
    target_checksum="0",
    differences=(Difference(key="aid=7", source_rows=1, target_rows=0),),
)


def _task(task_id: str, map_index: int, begin: float, end: float) -> TaskInstance:
    return TaskInstance(
        task_id=task_id,
        map_index=map_index,
        name=task_id if map_index < 0 else f"lane {map_index}",
        state="success",
        try_number=1,
        start=BEGAN.add(seconds=begin),
        end=BEGAN.add(seconds=end),
    )


def _status(*seqnos: int, state: ChannelState = ChannelState.STOPPED, waits_for: str = "") -> PipelineStatus:
    return PipelineStatus(
        pipeline="demo",
        owner=None,
        generation=1,
        lease_until=None,
        phase="stopped",
        captured_seqno=50_000,
        captured_time=None,
        planned_seqno=50_000,
        low_watermark=min(seqnos),
        torn_from=None,
        torn_to=None,
        failure=None,
        channels=tuple(
            ChannelStatus(
                channel=channel,
                seqno=seqno,
                lag_transactions=50_000 - seqno,
                lag_rows=0,
                rows=1000 * channel,
                state=state,
                waits_for=waits_for,
            )
            for channel, seqno in enumerate(seqnos)
        ),
    )


GOOD = Outcome(
    state="success",
    tasks=(_task("capture", -1, 0, 2), _task("apply", 0, 4, 14), _task("close", -1, 15, 20)),
    lanes=({"lane": 0, "channels": [0, 1], "units": 3, "rows": 200_000, "seconds": {"merge": 4.25}},),
    captured={},
    closed={"rows": 200_000, "stop_seqno": 50_000},
    status=_status(50_000, 50_000),
    tables=(EQUAL,),
)


def _printed(outcome: Outcome) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_report(console, outcome)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_good_run_is_reported_with_its_throughput_and_where_the_time_went() -> None:
    text = _printed(GOOD)
    assert GOOD.good
    assert "200,000 changes applied, stopped at seqno 50,000" in text
    assert "10,000 changes/s over the whole run (20.0 s)" in text
    assert "20,000 changes/s over the lanes (10.0 s)" in text
    assert "apply (lane 0)" in text
    assert "4.2" in text
    assert "all tables are equal" in text


@pytest.mark.parametrize(
    ("outcome", "complaint"),
    [
        (replace(GOOD, state="failed"), "the run ended as failed"),
        (replace(GOOD, tables=(DIFFERENT,)), "these tables differ: public.pgbench_accounts"),
        (replace(GOOD, tables=(DIFFERENT,)), "aid=7 is missing in the target"),
        (replace(GOOD, tables=()), "nothing was compared"),
        (replace(GOOD, status=_status(50_000, 49_999)), "the channels are not at one seqno"),
        (replace(GOOD, status=None, closed={}, lanes=()), "the channels are not at one seqno"),
    ],
)
def test_whatever_is_wrong_is_named_and_the_outcome_is_not_good(outcome: Outcome, complaint: str) -> None:
    assert not outcome.good
    assert complaint in " ".join(_printed(outcome).split())


def test_without_a_terminal_channels_are_plain_lines_said_only_when_they_change() -> None:
    seconds = iter(range(0, 1000, 5))
    console = Console(file=io.StringIO(), width=300, force_terminal=False)
    display = Display(console, clock=lambda: float(next(seconds)))
    with display.channels() as view:
        view.show(None, "capture running")
        view.show(None, "capture running")
        view.show(replace(_status(7, 9), phase="idle"), "route running")
        status = replace(_status(7, 9, state=ChannelState.WAITING, waits_for="a lane"), owner="us", phase="running")
        view.show(status, "apply running ×2")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 3
    assert lines[0].endswith("capture running")
    assert lines[1].endswith("route running; in the log to seqno 50,000")
    assert "0: seqno 7 0/s lag 49,993 waiting for a lane | 1: seqno 9" in lines[2]


def test_in_a_terminal_channels_are_a_live_table() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with Display(console).channels() as view:
        view.show(_status(7, 9), "apply running ×2")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "apply running ×2" in text
    assert "stopped" in text


def test_without_a_terminal_a_bar_says_at_least_its_end() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    with Display(console).bar("transactions", 1000) as update:
        update(10)
        update(1000)
    assert console.file.getvalue().splitlines()[-1].endswith("transactions: 1,000 of 1,000")  # type: ignore[attr-defined]
