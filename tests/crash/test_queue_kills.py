"""The memory backend's process killed with -9 at any moment: what was acknowledged is there, nothing is half done.

`CRASH_SEED` repeats the delays, `QUEUE_KILLS` says how many kills.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from airflow_parallel_apply.queue.memory import DataDirectory, MemoryQueue, check_data
from tests.crash.queue_walker import LIMITS
from tests.support.queue_walk import Walk

SEED = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(10**6))
KILLS = int(os.environ.get("QUEUE_KILLS") or 12)
ROOT = Path(__file__).resolve().parents[2]
LONGEST_STEPS = 150
WALKS = 3


def walk_until_killed(directory: Path, start: dict[int, int], steps: int) -> dict[int, int]:
    """Killed when so many steps were acknowledged: by walk, the number of the next step after the last of those."""
    arguments = [f"{seed}={number}" for seed, number in start.items()]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.queue_walker", str(directory), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    watchdog = threading.Timer(300, process.kill)
    watchdog.start()
    acknowledged = dict(start)
    try:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            seed, number = map(int, line.split())
            acknowledged[seed] = number + 1
            if count == steps:
                process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
    finally:
        watchdog.cancel()
        process.kill()
    assert process.returncode == -signal.SIGKILL, errors
    return acknowledged


def test_what_was_acknowledged_survives_kills_at_random_moments(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    directory = tmp_path / "queue"
    models = {seed: (Walk(MemoryQueue(), seed), 0) for seed in range(WALKS)}
    snapshots, torn = 0, 0
    for kill in range(KILLS):
        where = f"CRASH_SEED={SEED}, kill {kill}"
        start = {seed: reached for seed, (_, reached) in models.items()}
        acknowledged = walk_until_killed(directory, start, chance.randrange(1, LONGEST_STEPS))
        looked = check_data(directory)
        snapshots += looked.snapshot is not None
        torn += bool(looked.torn)
        data = DataDirectory(directory, limits=LIMITS)
        queue = MemoryQueue(data.engine)
        for seed, (model, walked) in models.items():
            for number in range(walked, acknowledged[seed]):
                model.step(number)
            found = Walk(queue, seed).picture()
            if found != model.picture():
                # The step under way may have been done without anybody being told.
                model.step(acknowledged[seed])
                acknowledged[seed] += 1
            assert found == model.picture(), where
            models[seed] = (model, acknowledged[seed])
        data.close()
    assert snapshots > KILLS // 2
    files = sorted(path.name for path in directory.iterdir())
    assert len([name for name in files if name.startswith("snapshot-")]) <= 2, files
    assert len(files) < 40, files
    print(f"{KILLS} kills, {sum(reached for _, reached in models.values())} steps, {torn} torn tails")
