"""A connection pooler in transaction mode, as small as it can be: a session of the server is a client's for one
transaction. It drops what the startup packet carries but user and database, as `ignore_startup_parameters` does.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_SSL: Final = 80877103
_READY: Final = ord("Z")
_PASSED: Final = (ord("R"), ord("S"))

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Pooler:
    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[Stream, bytes]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            startup = await self._startup(reader, writer)
            server, greeting = await self._take(startup)
            self._idle.append((server, greeting))
            writer.write(greeting)
            while True:
                request = await _message(reader)
                if request[:1] == b"X":
                    break
                held = await self._take(startup)
                await self._transaction(request, (reader, writer), held)
        writer.close()

    async def _transaction(self, request: bytes, client: Stream, held: tuple[Stream, bytes]) -> None:
        (server_reader, server_writer), _ = held
        status = b"T"
        while status != b"I":
            server_writer.write(request)
            if request[:1] in b"QS":
                answer = b""
                while not answer.startswith(b"Z"):
                    answer = await _message(server_reader)
                    client[1].write(answer)
                status = answer[-1:]
            if status != b"I":
                request = await _message(client[0])
        self._idle.append(held)

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[bytes, bytes]:
        while True:
            (size,) = struct.unpack("!I", await reader.readexactly(4))
            body = await reader.readexactly(size - 4)
            if struct.unpack("!I", body[:4])[0] == 196608:
                words = body[4:].split(b"\0")
                return dict(zip(words[::2], words[1::2], strict=False))
            writer.write(b"N")

    async def _take(self, startup: dict[bytes, bytes]) -> tuple[Stream, bytes]:
        if self._idle:
            return self._idle.pop()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        words = b"".join(word + b"\0" for name in (b"user", b"database") for word in (name, startup[name])) + b"\0"
        writer.write(struct.pack("!II", len(words) + 8, 196608) + words)
        greeting, message = b"", b" "
        while message[0] != _READY:
            message = await _message(reader)
            if message[0] in (*_PASSED, _READY):
                greeting += message
        return (reader, writer), greeting


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


@contextmanager
def transaction_pooler(port: int) -> Iterator[int]:
    """Its port, in front of the server's."""
    loop = asyncio.new_event_loop()
    pooler = _Pooler(port)
    server = loop.run_until_complete(asyncio.start_server(pooler.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
