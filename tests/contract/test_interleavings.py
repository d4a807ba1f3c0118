"""A pipeline in memory in thousands of interleavings: none breaks a law."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_parallel_apply.pipeline.config import Consistency
from tests.support.in_memory.interleavings import Interleavings, counts, run_machine
from tests.support.in_memory.stepped import without_threads


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
    run_machine(200)


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
