"""The states of channels for people, judged by their queues and positions."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pendulum

from airflow_parallel_apply.pipeline.admin.channel_status import ChannelState, Seen, channel_status, phase_of
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase, StopReason
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, Kind
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.queue.model import Task


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


def test_a_channel_at_a_barrier_waits_for_the_others_and_then_for_what_runs_alone() -> None:
    now = pendulum.now("UTC")
    parked = Task(
        task_id=uuid.uuid4(),
        queue="shop/1/channel/00",
        version=1,
        sequence=4,
        at=PARKED,
        claimant=None,
        claims=1,
        attempt=0,
        err="",
        value={"kind": Kind.BARRIER, "epoch": 4, "first_seqno": 10},
        created=now,
        modified=now,
    )
    state = CoordinatorState(phase=Phase.RUNNING, channels=2, fed_epoch=4, fed_seqno=10, until_seqno=10)
    position = Position(channel=0, seqno=9, generation=1, claim=None)

    def waits_for(other: Task | None) -> str:
        seen = Seen(state=state, heads=(parked, other))
        return channel_status(seen, position, (5, 1), 10, 10, stopped=False).waits_for

    assert waits_for(replace(parked, at=now)) == waits_for(None) == "the other channels"
    assert waits_for(parked) == "the transaction that runs alone"
