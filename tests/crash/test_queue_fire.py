"""Twenty clients of the service, which are killed with -9 at random moments, and so is the service.

`QUEUE_FIRE_TASKS` (200,000 takes some minutes), `QUEUE_FIRE_KILLS`, `QUEUE_FIRE_PROCESSES` (of the clients) make it
larger; `CRASH_SEED` repeats who is killed when.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from airflow_parallel_apply.queue import Insert, Queue, QueueUnavailable, TaskId, open_queue
from airflow_parallel_apply.queue.memory import check_data
from tests.crash.queue_clients import DONE, TO_DO
from tests.support.queue_service import ServiceProcess
from tests.support.variants import gated

TASKS = int(os.environ.get("QUEUE_FIRE_TASKS") or 1500)
KILLS = int(os.environ.get("QUEUE_FIRE_KILLS") or 5)
PROCESSES = int(os.environ.get("QUEUE_FIRE_PROCESSES") or 4)
SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
CLIENTS = 20
PATIENCE_SECONDS = 120 + TASKS / 100
ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = UUID(int=20)


class Clients:
    """Processes with some of the clients each; one that is killed is followed by another."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()
        self._running = [self._start() for _ in range(PROCESSES)]

    def kill(self, chance: random.Random) -> None:
        place = chance.randrange(len(self._running))
        self._end(self._running[place])
        self._running[place] = self._start()

    def end(self) -> None:
        for one in self._running:
            self._end(one)

    def _start(self) -> subprocess.Popen[bytes]:
        name = f"clients {next(self._numbers)}"
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.queue_clients", self._url, name, str(CLIENTS // PROCESSES)], cwd=ROOT
        )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.poll() is None, "a client ended by itself"
        process.send_signal(signal.SIGKILL)
        process.wait()


def victims(chance: random.Random) -> list[str]:
    """Name whom the moments kill: both at least once, in any order."""
    found = ["service", "clients", *chance.choices(["service", "clients"], k=KILLS)][:KILLS]
    chance.shuffle(found)
    return found


def put_all(queue: Queue) -> None:
    """Once, however often it is tried: the ids are the tasks' own."""
    for start in range(0, TASKS, 500):
        inserts = [
            Insert(queue=TO_DO[n % len(TO_DO)], value=n, task_id=TaskId(uuid5(NAMESPACE, str(n))), skip_colliding=True)
            for n in range(start, min(start + 500, TASKS))
        ]
        in_the_end(lambda inserts=inserts: queue.modify(claimant="maker", insert=inserts))


def in_the_end(call: Callable[[], Any]) -> Any:
    """Return what the call gives once the service is there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except QueueUnavailable:
            assert time.monotonic() < deadline, "the service stays away"


def test_every_task_is_done_once_whoever_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    service = ServiceProcess(tmp_path / "queue")
    address = service.ready["address"]
    queue = open_queue(service.url)
    clients = Clients(service.url)
    deadline = time.monotonic() + PATIENCE_SECONDS

    def until_done(count: int) -> None:
        while sum(row.size for row in in_the_end(lambda: queue.queue_stats(exact=[DONE]))) < count:
            assert time.monotonic() < deadline, f"CRASH_SEED={SEED}: {queue.queue_stats()}"
            time.sleep(0.02)

    killed = Counter[str]()
    try:
        put_all(queue)
        moments = sorted(chance.randrange(TASKS) for _ in range(KILLS))
        for least, victim in zip(moments, victims(chance), strict=True):
            until_done(least)
            killed[victim] += 1
            if victim == "clients":
                clients.kill(chance)
            else:
                service.end(signal.SIGKILL)
                service = ServiceProcess(tmp_path / "queue", listen=address)
        until_done(TASKS)
        clients.end()
        done = queue.tasks(DONE)
        assert Counter(task.value["n"] for task in done) == Counter(range(TASKS)), f"CRASH_SEED={SEED}"
        for task in done:
            version, claims, attempt = task.value["seen"]
            renewals = version - claims - attempt
            assert claims > attempt >= 0 <= renewals <= claims, f"CRASH_SEED={SEED}: {task.value}"
            assert (task.version, task.claims) == (0, 0)
        assert [row.queue for row in queue.queue_stats()] == [DONE]
        assert service.end(signal.SIGTERM)[0] == 0
    finally:
        service.process.kill()
        queue.close()
    looked = check_data(tmp_path / "queue")
    assert (len(looked.tasks), looked.torn) == (TASKS, [])
    again = Counter(task.value["seen"][1] > 1 + task.value["seen"][2] for task in done)
    print(f"{TASKS} tasks, killed {dict(killed)}, {again[True]} tasks were done by another claim than the first")


@gated
def test_what_a_killed_client_held_comes_free_when_its_lease_ends(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "queue")
    queue = open_queue(service.url)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, service.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        queue.modify(claimant="maker", insert=[Insert(queue="q")])
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        (held,) = queue.tasks("q")
        taken = queue.claim(["q"], claimant="next", lease=timedelta(minutes=1), timeout=timedelta(minutes=1))
        assert taken is not None
        assert (taken.claims, taken.claimant, held.claimant) == (2, "next", "holder")
        assert taken.modified >= held.at
    finally:
        holder.kill()
        holder.communicate()
        service.end(signal.SIGKILL)
        queue.close()


HOLD = """
import sys
from datetime import timedelta
from airflow_parallel_apply.queue import open_queue
queue = open_queue(sys.argv[1])
queue.claim(["q"], claimant="holder", lease=timedelta(seconds=3), timeout=timedelta(minutes=1))
print("held", flush=True)
sys.stdin.read()
"""
