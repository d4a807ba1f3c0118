"""`parallel-apply status` shows errors."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from airflow_parallel_apply.cli.status_view import status_view
from airflow_parallel_apply.pipeline.admin.channel_status import ChannelState, ChannelStatus
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus


def shown(*, width: int = 250, **found: Any) -> str:
    """The view of a status with nothing but these and what it must have."""
    status = PipelineStatus(
        pipeline="shop",
        owner=None,
        generation=2,
        lease_until=None,
        captured_seqno=8,
        captured_time=None,
        planned_seqno=8,
        low_watermark=7,
        torn_from=None,
        torn_to=None,
        **found,
    )
    text = StringIO()
    Console(file=text, width=width).print(status_view(status, {}))
    return text.getvalue()


def test_the_place_of_an_error_in_brackets_is_shown() -> None:
    message = "1 rows to update are not in the target [op commit, channel 0, table public.lines]"
    channel = ChannelStatus(
        channel=0,
        seqno=7,
        lag_transactions=1,
        lag_rows=1,
        rows=8,
        state=ChannelState.FAILED,
        waits_for=f"a person: {message}",
    )
    told = shown(phase="failed", failure=message, channels=(channel,))
    assert told.count("[op commit, channel 0, table public.lines]") == 2


def test_the_store_that_was_chosen_is_named_with_the_reason() -> None:
    chosen = "channel_log, since each of 8 channels would read all of the log"
    told = shown(phase="running", failure=None, channels=(), store_choice=chosen)
    assert f"channels are read through the store {chosen}" in told


def test_a_narrow_terminal_cuts_nothing() -> None:
    channel = ChannelStatus(
        channel=0,
        seqno=7,
        lag_transactions=1,
        lag_rows=1,
        rows=8,
        state=ChannelState.BEHIND_FAILURE,
        waits_for="a person",
    )
    assert "…" not in shown(width=50, phase="failed", failure=None, channels=(channel,))
