"""The states of channels for people, judged by their queues and positions."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.admin.channel_status import ChannelState, Seen, channel_status, phase_of
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase, StopReason
from airflow_parallel_apply.pipeline.model.position import Position


def test_a_channel_that_met_its_stop_marker_waits_for_nothing_while_others_go_on() -> None:
    stopping = CoordinatorState(
        phase=Phase.STOPPING, channels=2, fed_epoch=3, fed_seqno=9, until_seqno=9, stop_seqno=9, acknowledged=(0,)
    )
    position = Position(channel=0, seqno=9, generation=1, claim=None)
    told = channel_status(Seen(state=stopping, heads=(None, None)), position, (5, 0), 9, 9, stopped=False)
    assert (told.state, told.waits_for) == (ChannelState.STOPPED, "")


def test_a_run_stops_for_people_only_when_somebody_asked() -> None:
    running = CoordinatorState(phase=Phase.RUNNING, channels=2, fed_epoch=3, fed_seqno=9, until_seqno=9)
    told = {reason: phase_of(Seen(state=running.stopping(reason)), None) for reason in StopReason}
    assert told == {StopReason.END: "running", StopReason.ASKED: "stopping"}
