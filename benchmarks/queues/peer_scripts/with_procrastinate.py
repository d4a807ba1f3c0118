"""procrastinate: bulk inserts on a pool, then workers that share it; finished jobs are deleted."""

import asyncio
import json
import sys
import time

import procrastinate
import uvloop


async def main(work: dict) -> None:
    connector = procrastinate.PsycopgConnector(
        conninfo=work["dsn"], min_size=work["workers"], max_size=work["workers"] + 2
    )
    app = procrastinate.App(connector=connector)
    done = set()

    @app.task(name="one", queue="work")
    async def one(n: int, pad: str) -> None:
        done.add(n)

    async def insert(worker: int) -> None:
        numbers = range(worker, work["tasks"], work["workers"])
        for start in range(0, len(numbers), work["batch"]):
            await one.batch_defer_async(*(value(work, n) for n in numbers[start : start + work["batch"]]))

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.monotonic()
        await asyncio.gather(*(insert(worker) for worker in range(work["workers"])))
        inserted = time.monotonic()
        await asyncio.gather(
            *(
                app.run_worker_async(
                    concurrency=1, wait=False, listen_notify=False, delete_jobs="always",
                    install_signal_handlers=False,
                )
                for _ in range(work["workers"])
            )
        )  # fmt: skip
        finished = time.monotonic()
    assert done == set(range(work["tasks"])), f"{len(done)} done"
    print(json.dumps({"insert": inserted - began, "work": finished - inserted}))


def value(work: dict, number: int) -> dict:
    bare = len(f'{{"n": {number}, "pad": ""}}')
    return {"n": number, "pad": "x" * max(work["value_bytes"] - bare, 0)}


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
