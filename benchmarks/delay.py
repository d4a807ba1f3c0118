"""A server that is far away: a local proxy which holds back everything by half a round trip, each way.

`python -m benchmarks.delay HOST PORT MILLISECONDS` prints its port and serves until its standard input ends. A process
of its own, since what is measured must not share its interpreter with it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_CHUNK_BYTES: Final = 256 * 2**10
_HELD_CHUNKS: Final = 64


@contextmanager
def far_away(dsn: str, milliseconds: float) -> Iterator[str]:
    """The same server's connection string, a round trip of so many milliseconds away."""
    given = conninfo_to_dict(dsn)
    command = [sys.executable, "-m", __name__, str(given["host"]), str(given["port"]), str(milliseconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            if proxy.stdout is None:
                raise ChildProcessError("the proxy has no output")
            yield make_conninfo(dsn, host="127.0.0.1", port=int(proxy.stdout.readline()))
        finally:
            proxy.terminate()


async def _serve(host: str, port: int, seconds: float) -> None:
    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(host, port)
        await asyncio.gather(_carry(reader, far_writer, seconds), _carry(far_reader, writer, seconds))

    server = await asyncio.start_server(meet, "127.0.0.1", 0, limit=_CHUNK_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Each chunk leaves so many seconds after it came, whatever is before it on the way."""
    loop = asyncio.get_running_loop()
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_CHUNKS)

    async def deliver() -> None:
        while True:
            due, chunk = await held.get()
            if not chunk:
                writer.close()
                return
            await asyncio.sleep(max(0.0, due - loop.time()))
            writer.write(chunk)
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            await held.put((loop.time() + seconds, chunk))
    except ConnectionError:
        pass
    await held.put((0.0, b""))
    try:
        await delivering
    except ConnectionError:
        return


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) / 2000))
