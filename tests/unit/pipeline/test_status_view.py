"""`parallel-apply status` shows errors."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from airflow_parallel_apply.cli.status_view import status_view
from airflow_parallel_apply.pipeline.admin.channel_status import ChannelState, ChannelStatus
from airflow_parallel_apply.pipeline.admin.status import PipelineStatus


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
    status = PipelineStatus(
        pipeline="shop",
        owner=None,
        generation=2,
        lease_until=None,
        phase="failed",
        captured_seqno=8,
        captured_time=None,
        planned_seqno=8,
        low_watermark=7,
        torn_from=None,
        torn_to=None,
        failure=message,
        channels=(channel,),
    )
    shown = StringIO()
    Console(file=shown, width=250).print(status_view(status, {}))
    assert shown.getvalue().count("[op commit, channel 0, table public.lines]") == 2
