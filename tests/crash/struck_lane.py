"""A lane that is killed, or falls asleep, where a fault says, and another one that finishes its run."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.run import ClosedRun
from tests.crash.scene import Scene
from tests.support.step_process import Fault

TARGET: Final = "airflow_parallel_apply.pipeline.target.postgres.target"
COORDINATOR: Final = "airflow_parallel_apply.pipeline.coordinate.coordinator:Coordinator"
WHILE_IT_STAGES: Final = Fault(
    at="airflow_parallel_apply.pipeline.target.postgres.load.table_load:TableLoad.flush", when="after", call=3
)


def finish_after_kill(scene: Scene, fault: Fault) -> ClosedRun:
    """The first lane is killed; the second brings both sides to the same rows."""
    opened = scene.open("run")
    lane = scene.start_lane(opened, fault=fault)
    assert lane.wait() == -signal.SIGKILL, lane.tail()
    scene.rig.lane(opened, 1)
    closed = scene.close(opened)
    scene.require_equal()
    return closed


def finish_while_asleep(scene: Scene, fault: Fault, standing: Callable[[Scene], object]) -> None:
    """The first lane sleeps past its lease while the second finishes; waking, it changes nothing of what stands."""
    opened = scene.open("run")
    lane = scene.start_lane(opened, fault=replace(fault, signal=signal.SIGSTOP))
    lane.wait_stopped()
    scene.rig.lane(opened, 1)
    scene.close(opened)
    scene.require_equal()
    before = standing(scene)
    lane.signal(signal.SIGCONT)
    lane.wait()
    assert standing(scene) == before
    scene.require_equal()


def require_repeatable(scene: Scene, closed: ClosedRun) -> None:
    """The run that was finished ends where it did, once more, and changes nothing."""
    assert scene.rerun("run").stop_seqno == closed.stop_seqno
    scene.require_equal()


def require_later_run(scene: Scene) -> None:
    """A run after it takes what the source wrote since."""
    scene.rig.write("INSERT INTO t VALUES (100000, 'later')")
    scene.rerun("later")
    scene.require_equal()


def committed(scene: Scene) -> list[tuple[int, int, int]]:
    """Channel, seqno, generation. The claim may change: a lane that slept between renewing a task and taking its
    channel writes its token when it wakes, since queue and target may be two databases. It harms nobody: whoever holds
    the channel is refused at its commit, or has committed already, and begins anew from the position that it reads; the
    sleeper applies what lies above that position, if anything, and cannot finish a task that is no longer its own.
    """
    return [(position.channel, position.seqno, position.generation) for position in scene.positions()]
