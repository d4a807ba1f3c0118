"""Epoch consistency under fire: a bank whose total never changes, read all the time while lanes die and fall asleep."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency
from tests.crash.scene import Scene

ACCOUNTS = 60
OPENING = 1000
TOTAL = ACCOUNTS * OPENING
SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))


@dataclass
class Reader:
    """Reads the total in a loop. `wrong`: what it saw of a state that the source never had."""

    dsn: str
    reads: int = 0
    totals: set[tuple[int, int]] = field(default_factory=set)
    """(number of accounts, their total), as seen."""
    steps: list[int] = field(default_factory=list)
    """The number of transfers, each time that it was another one than before."""
    snapshots: dict[int, set[tuple[int, int, int]]] = field(default_factory=dict)
    """(accounts, total, transfers), by the seqno that a snapshot told."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        ended = threading.Event()
        thread = threading.Thread(target=self._read, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _read(self, ended: threading.Event) -> None:
        query = "SELECT count(*), coalesce(sum(balance), 0), (SELECT count(*) FROM transfer) FROM account"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not ended.is_set():
                with connection.transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    (seqno,) = connection.execute("SELECT parallel_apply.consistent_snapshot('p')").fetchone() or (0,)
                    accounts, total, transfers = connection.execute(query).fetchone() or (0, 0, 0)
                assert seqno >= max(self.snapshots, default=seqno), "a later snapshot is of an earlier state"
                self.snapshots.setdefault(seqno, set()).add((accounts, int(total), transfers))
                accounts, total, transfers = connection.execute(query).fetchone() or (0, 0, 0)
                self.reads += 1
                self.totals.add((accounts, int(total)))
                if not self.steps or self.steps[-1] != transfers:
                    self.steps.append(transfers)


def open_bank(scene: Scene) -> None:
    scene.rig = scene.rig.having(consistency=Consistency.EPOCH, channels=4, epoch_max_changes=60, unit_max_bytes=4_000)
    scene.rig.both(
        "CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL)",
        "CREATE TABLE transfer (id bigint PRIMARY KEY, debit integer, credit integer, amount bigint)",
    )
    scene.rig.prepare()
    scene.rig.write(f"INSERT INTO account SELECT i, {OPENING} FROM generate_series(1, {ACCOUNTS}) i")


def transfer(scene: Scene, dice: random.Random, first: int, count: int) -> list[int]:
    """Transactions of one to five transfers each; a transfer's rows are in any channels. Returns how many transfers
    there are behind each transaction.
    """
    counts: list[int] = []
    with psycopg.connect(scene.rig.source_dsn, autocommit=True) as connection:
        number = first
        while number < first + count:
            with connection.transaction():
                for _ in range(dice.randint(1, 5)):
                    debit, credit = dice.sample(range(1, ACCOUNTS + 1), 2)
                    amount = dice.randint(1, 50)
                    connection.execute("UPDATE account SET balance = balance - %s WHERE id = %s", [amount, debit])
                    connection.execute("UPDATE account SET balance = balance + %s WHERE id = %s", [amount, credit])
                    connection.execute("INSERT INTO transfer VALUES (%s, %s, %s, %s)", [number, debit, credit, amount])
                    number += 1
            counts.append(number)
    return counts


def play(scene: Scene, *, rounds: int, transfers: int, say: Callable[[str], None]) -> None:
    dice = random.Random(SEED)
    open_bank(scene)
    scene.rerun("opening")
    reader = Reader(scene.rig.target_dsn)
    states = [0]
    with reader.reading():
        for number in range(rounds):
            states += transfer(scene, dice, states[-1], transfers)
            disturbed(scene, f"round {number}", dice)
            scene.rerun(f"round {number}")
    say(f"CRASH_SEED={SEED}: {reader.reads} reads, {len(reader.steps)} states")
    scene.require_equal()
    assert scene.staged() == []
    assert reader.totals == {(ACCOUNTS, TOTAL)}
    assert set(reader.steps) <= set(states), "every state is the source's behind some transaction"
    first = min(reader.snapshots)
    for seqno, seen in reader.snapshots.items():
        assert seen == {(ACCOUNTS, TOTAL, states[seqno - first])}, "it is the one that the snapshot told"
    assert reader.steps == sorted(reader.steps), "what was visible once stays"
    assert len(reader.steps) > 2


def disturbed(scene: Scene, run_id: str, dice: random.Random) -> None:
    """Two lanes; one of them is killed, or sleeps past its lease while the other goes on, and wakes."""
    opened = scene.open(run_id)
    lanes = [scene.start_lane(opened, lane) for lane in range(2)]
    deadline = time.monotonic() + dice.uniform(0.1, 1.5)
    while time.monotonic() < deadline and all(lane.running for lane in lanes):
        time.sleep(0.01)
    victim, other = dice.sample(lanes, 2)
    if dice.random() < 0.5:
        victim.signal(signal.SIGKILL)
        other.wait()
    else:
        victim.signal(signal.SIGSTOP)
        other.wait()
        victim.signal(signal.SIGCONT)
    victim.wait()


def test_every_read_of_a_bank_sees_its_total_whoever_dies(scene: Scene, say: Callable[[str], None]) -> None:
    play(scene, rounds=2, transfers=400, say=say)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_long_day_at_the_bank(scene: Scene, say: Callable[[str], None]) -> None:
    play(scene, rounds=20, transfers=1500, say=say)
