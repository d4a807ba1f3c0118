"""Epoch consistency under fire: a bank whose total never changes, read all the time while lanes die and fall asleep."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from tests.crash.scene import Scene
from tests.support.variants import gated

ACCOUNTS = 60
OPENING = 1000
TOTAL = ACCOUNTS * OPENING
ROUNDS_A_LINE = 10
SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))


State = tuple[int, str, int]
"""(total, digest of all balances, transfers so far)"""

STATE = (
    "SELECT sum(balance)::bigint, md5(string_agg(id || ' ' || balance, ',' ORDER BY id)), "
    "(SELECT coalesce(max(id) + 1, 0) FROM transfer) FROM account"
)


@dataclass
class Reader:
    """Reads the bank in a loop: a snapshot that says what it is of, then plain reads, some in each round trip."""

    dsn: str
    at_once: int = 1
    is_plain: bool = True
    """False: it reads in snapshots alone."""
    inside: int = 0
    """Snapshots that were refused: between the commits of one group."""
    reads: int = 0
    states: dict[State, int] = field(default_factory=dict)
    """The states that plain reads saw, and how often."""
    snapshots: dict[int, set[State]] = field(default_factory=dict)
    """The states that snapshots saw, by the seqno that they told."""
    steps: list[int] = field(default_factory=list)
    """The number of transfers, each time that it was another one than before."""
    failures: list[Exception] = field(default_factory=list)

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
        # Statements of one message share a transaction, and of READ COMMITTED each has a snapshot of its own.
        plain = ";".join([STATE] * self.at_once).encode()
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while not ended.is_set():
                    try:
                        with connection.transaction():
                            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                            ((seqno,),) = connection.execute("SELECT parallel_apply.consistent_snapshot('p')")
                            (told,) = connection.execute(STATE.encode())
                    except psycopg.errors.SerializationFailure:
                        self.inside += 1
                        continue
                    assert seqno >= max(self.snapshots, default=seqno), "a later snapshot is of an earlier state"
                    self.snapshots.setdefault(seqno, set()).add(told)
                    if not self.is_plain:
                        self._see([told])
                        continue
                    found = connection.execute(plain)
                    self._see(found.fetchall())
                    while found.nextset():
                        self._see(found.fetchall())
        except (psycopg.Error, AssertionError) as error:
            self.failures.append(error)

    def _see(self, rows: list[State]) -> None:
        (state,) = rows
        self.reads += 1
        self.states[state] = self.states.get(state, 0) + 1
        if not self.steps or self.steps[-1] != state[2]:
            self.steps.append(state[2])


@dataclass
class Bank:
    """The source, and its state behind each transaction: what a reader of the target may see."""

    dsn: str
    balances: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, ACCOUNTS + 1), OPENING))
    transfers: int = 0
    states: list[State] = field(default_factory=list)

    def note(self) -> None:
        listed = ",".join(f"{number} {balance}" for number, balance in sorted(self.balances.items()))
        digest = hashlib.md5(listed.encode(), usedforsecurity=False).hexdigest()
        self.states.append((sum(self.balances.values()), digest, self.transfers))

    def transfer(self, dice: random.Random, wanted: int) -> None:
        """Transactions of one to five transfers each; a transfer's rows are in any channels."""
        last = self.transfers + wanted
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while self.transfers < last:
                with connection.transaction():
                    for _ in range(dice.randint(1, 5)):
                        self._transfer(connection, *dice.sample(range(1, ACCOUNTS + 1), 2), dice.randint(1, 50))
                self.note()

    def _transfer(self, connection: psycopg.Connection, debit: int, credit: int, amount: int) -> None:
        connection.execute("UPDATE account SET balance = balance - %s WHERE id = %s", [amount, debit])
        connection.execute("UPDATE account SET balance = balance + %s WHERE id = %s", [amount, credit])
        connection.execute("INSERT INTO transfer VALUES (%s, %s, %s, %s)", [self.transfers, debit, credit, amount])
        self.balances[debit] -= amount
        self.balances[credit] += amount
        self.transfers += 1


def open_bank(scene: Scene, protocol: EpochProtocol) -> Bank:
    scene.rig = scene.rig.having(
        consistency=Consistency.EPOCH,
        epoch_protocol=protocol,
        channels=4,
        epoch_max_changes=60,
        unit_max_bytes=4_000,
    )
    scene.rig.both(
        "CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL)",
        "CREATE TABLE transfer (id bigint PRIMARY KEY, debit integer, credit integer, amount bigint)",
    )
    scene.rig.prepare()
    scene.rig.write(f"INSERT INTO account SELECT i, {OPENING} FROM generate_series(1, {ACCOUNTS}) i")
    scene.rerun("opening")
    bank = Bank(scene.rig.source_dsn)
    bank.note()
    return bank


def play(
    scene: Scene,
    *,
    transfers: int,
    say: Callable[[str], None],
    rounds: int = 1,
    reads: int = 0,
    readers: int = 1,
    at_once: int = 1,
    protocol: EpochProtocol = EpochProtocol.LEADER_MERGE,
) -> None:
    """Rounds of transfers and of a run that is disturbed, until there are so many and so many plain reads; under
    two_phase, reads in snapshots.
    """
    dice = random.Random(SEED)
    bank = open_bank(scene, protocol)
    first = scene.positions()[0].seqno
    is_plain = protocol is EpochProtocol.LEADER_MERGE
    looking = [Reader(scene.rig.target_dsn, at_once, is_plain) for _ in range(readers)]
    began = time.monotonic()
    with ExitStack() as stack:
        for reader in looking:
            stack.enter_context(reader.reading())
        for number in count():
            done = sum(reader.reads for reader in looking)
            if (number >= rounds and done >= reads) or any(reader.failures for reader in looking):
                break
            if number % ROUNDS_A_LINE == ROUNDS_A_LINE - 1:
                say(f"round {number}: {done:,} reads, {bank.transfers:,} transfers, {time.monotonic() - began:.0f} s")
            bank.transfer(dice, transfers)
            disturbed(scene, f"round {number}", dice)
            scene.rerun(f"round {number}")
    seen: dict[State, int] = {}
    for reader in looking:
        assert reader.failures == []
        assert reader.steps == sorted(reader.steps), "what was visible once stays"
        assert len(reader.steps) > 2
        for seqno, found in reader.snapshots.items():
            assert found == {bank.states[seqno - first]}, "it is the one that the snapshot told"
        for state, times in reader.states.items():
            seen[state] = seen.get(state, 0) + times
    snapshots = len({seqno for reader in looking for seqno in reader.snapshots})
    say(
        f"CRASH_SEED={SEED}: {sum(seen.values()):,} plain reads by {readers} readers saw {len(seen)} of the source's "
        f"{len(bank.states):,} states, snapshots {snapshots}; {time.monotonic() - began:.0f} s"
    )
    say(f"snapshots refused inside a series: {sum(reader.inside for reader in looking)}")
    assert {total for total, _, _ in seen} == {TOTAL}
    assert set(seen) <= set(bank.states), "every state is the source's behind some transaction"
    scene.require_equal()
    assert scene.staged() == []
    assert scene.prepared() == []


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


PROTOCOLS = [EpochProtocol.LEADER_MERGE, EpochProtocol.TWO_PHASE]


@gated
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_read_of_a_bank_sees_its_total_whoever_dies(
    scene: Scene, say: Callable[[str], None], protocol: EpochProtocol
) -> None:
    play(scene, rounds=2, transfers=400, say=say, protocol=protocol)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_million_reads_of_a_bank(scene: Scene, say: Callable[[str], None], protocol: EpochProtocol) -> None:
    play(scene, reads=1_000_000, transfers=500, readers=3, at_once=50, say=say, protocol=protocol)
