"""pgqueuer: bulk inserts, then managers with a connection each, which claim and finish by batches."""

import asyncio
import json
import re
import sys
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode


async def main(work: dict) -> None:
    url = re.sub(r"host=(\S+) port=(\d+) user=(\S+) dbname=(\S+)", r"postgresql://\3@\1:\2/\4", work["dsn"])
    pool = await asyncpg.create_pool(url, min_size=work["workers"], max_size=work["workers"])
    queries = Queries(AsyncpgPoolDriver(pool))
    await queries.install()

    async def insert(worker: int) -> None:
        numbers = range(worker, work["tasks"], work["workers"])
        for start in range(0, len(numbers), work["batch"]):
            payloads = [value(work, n) for n in numbers[start : start + work["batch"]]]
            await queries.enqueue(["one"] * len(payloads), payloads, [0] * len(payloads))

    began = time.monotonic()
    await asyncio.gather(*(insert(worker) for worker in range(work["workers"])))
    inserted = time.monotonic()
    await pool.close()
    done = set()
    managers = [
        PgQueuer(AsyncpgDriver(await asyncpg.connect(url))) for _ in range(work.get("managers", work["workers"]))
    ]
    for manager in managers:

        @manager.entrypoint("one")
        async def one(job: Job) -> None:
            done.add(json.loads(job.payload)["n"])
            if len(done) == work["tasks"]:
                for each in managers:
                    each.shutdown.set()

    began_work = time.monotonic()
    await asyncio.gather(
        *(
            manager.run(batch_size=work["batch"], mode=QueueExecutionMode.drain, dequeue_timeout=timedelta(seconds=1))
            for manager in managers
        )
    )
    finished = time.monotonic()
    connection = await asyncpg.connect(url)
    left = await connection.fetchval("SELECT count(*) FROM pgqueuer")
    assert (len(done), left) == (work["tasks"], 0), f"{len(done)} done, {left} left"
    print(json.dumps({"insert": inserted - began, "work": finished - began_work}))


def value(work: dict, number: int) -> bytes:
    bare = len(f'{{"n": {number}, "pad": ""}}')
    return json.dumps({"n": number, "pad": "x" * max(work["value_bytes"] - bare, 0)}).encode()


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
