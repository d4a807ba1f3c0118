"""A pipeline in memory in thousands of interleavings: none breaks a law."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_parallel_apply.pipeline.config import Consistency
from airflow_parallel_apply.pipeline.coordinate.tasks import Kind, OrderedWork
from airflow_parallel_apply.queue.memory.backend import MemoryQueue
from tests.support.in_memory.interleavings import Interleavings, counts, run_machine
from tests.support.in_memory.pipeline import MemoryPipeline
from tests.support.in_memory.stepped import without_threads
from tests.support.variants import gated


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)


@pytest.fixture(autouse=True)
def report(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    counts.update(dict.fromkeys(counts, 0))
    yield
    with capsys.disabled():
        print("\n" + ", ".join(f"{count} {name}" for name, count in counts.items()))


def test_no_interleaving_breaks_a_law() -> None:
    run_machine(60)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_none_of_thousands_of_interleavings_breaks_a_law() -> None:
    run_machine(5_000)


def test_a_unit_that_was_held_when_its_target_lost_commits_does_not_pass_the_stop() -> None:
    machine = Interleavings()
    machine.begin(
        seed=0, channels=3, unit_bytes=1, fed_epochs=3, in_one_database=False, until_seqno=None, refused=set()
    )
    machine.go_to(choice=0, place="behind modify", times=1)
    machine.ask_to_stop()
    machine.restore_the_target()
    machine.teardown()


@gated
@pytest.mark.parametrize("consistency", Consistency)
@pytest.mark.parametrize("is_stopped", [False, True])
def test_what_is_committed_beside_a_queue_that_was_lost_is_gone_on_from(
    consistency: Consistency, is_stopped: bool
) -> None:
    """The tasks are made anew from where the positions were, and one lane still commits what it held before."""
    machine = Interleavings()
    machine.begin(
        seed=0, channels=3, unit_bytes=1, fed_epochs=3, in_one_database=False, until_seqno=None, refused=set(),
        consistency=consistency, rows_at_once=100,
    )  # fmt: skip
    machine.go_to(choice=0, place="commit", times=1)
    machine.lose_the_queue()
    if is_stopped:
        machine.ask_to_stop()
    machine.go_to(choice=1, place="behind modify", times=2 if is_stopped else 1)
    machine.go_to(choice=0, place="behind commit", times=1)
    machine.teardown()


def holds_serial(pipeline: MemoryPipeline) -> bool:
    """True if a lane holds a serial epoch, which all channels have reached."""
    heads = MemoryQueue(pipeline.engine).tasks(pipeline.serial_queue, limit=1)
    return any(head.claimant and OrderedWork.of_task(head).kind is Kind.SERIAL for head in heads)


@gated
@pytest.mark.parametrize("place", ["behind claim", "commit"])
def test_a_barrier_that_is_reached_again_while_its_epoch_is_held_waits_for_the_holder(place: str) -> None:
    """The target loses all that is below the serial epoch, and the holder, who may take long, does not know yet."""
    machine = Interleavings()
    machine.begin(
        seed=0, channels=3, unit_bytes=1, fed_epochs=3, in_one_database=False, until_seqno=None, refused=set(),
        consistency=Consistency.EPOCH, rows_at_once=100,
    )  # fmt: skip
    holder, other = machine.lanes
    while not (holder.place == place and holds_serial(machine.pipeline)):
        machine.turn(holder)
    machine.restore_the_target()
    places = set()
    for _ in range(2_000):
        machine.turn(other)
        places.add(other.place)
    assert holds_serial(machine.pipeline)
    assert "retry" not in places, "it tried in vain, and would have given up"
    machine.teardown()
