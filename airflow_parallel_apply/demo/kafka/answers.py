"""Answers to requests, by their keys and versions."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import islice
from typing import Final

from airflow_parallel_apply.demo.kafka.state import Code, Partition, State
from airflow_parallel_apply.demo.kafka.wire import Request, array, content, numbers, text

_VERSIONS: Final = {0: (3, 7), 1: (4, 4), 2: (1, 2), 3: (1, 4), 10: (0, 1), 18: (0, 0), 19: (0, 4), 20: (0, 1)} | {
    22: (0, 1),
    24: (0, 0),
    26: (0, 1),
    32: (1, 1),
}
"""Lowest and highest version of each request that is answered."""

_VERSIONS_REQUEST: Final = 18
_UNSUPPORTED_VERSION: Final = 35
_COMMITTED_ONLY: Final = 1
_EARLIEST: Final = -2
_NODE: Final = 1
_OF_TOPIC: Final = 1
"""A setting that a topic has of its own."""
_CLUSTER: Final = "parallel_apply_demo"


class Answers:
    """Answers one connection's requests. `host`, `port`: where clients find the node."""

    def __init__(self, state: State, host: str, port: int) -> None:
        self._state = state
        self._host, self._port = host, port
        self._by_key: dict[int, Callable[[int, Request], bytes | None]] = {
            0: self._produce,
            1: self._fetch,
            2: self._list_offsets,
            3: self._metadata,
            10: self._find_coordinator,
            19: self._create_topics,
            20: self._delete_topics,
            22: self._init_producer,
            24: self._add_partitions,
            26: self._end_transaction,
            32: self._describe_settings,
        }

    def of(self, key: int, version: int, request: Request) -> bytes | None:
        """The body of an answer; None where none is asked for."""
        if key == _VERSIONS_REQUEST:
            ranges = array(numbers("hhh", one, *found) for one, found in _VERSIONS.items())
            return numbers("h", _UNSUPPORTED_VERSION if version else 0) + ranges
        return self._by_key[key](version, request)

    def _produce(self, version: int, request: Request) -> bytes | None:
        request.text()
        acks = request.number("h")
        request.number("i")

        def partition(topic: str) -> bytes:
            number = request.number("i")
            code, offset = self._state.append(topic, number, request.content())
            return numbers("ihqq", number, code, offset, -1) + (numbers("q", 0) if version >= 5 else b"")

        found = self._topics(request, partition)
        return found + numbers("i", 0) if acks else None

    def _fetch(self, _version: int, request: Request) -> bytes:
        request.number("i")
        wait, smallest = request.number("i") / 1000, request.number("i")
        request.number("i")
        committed_only = request.number("b") == _COMMITTED_ONLY
        wanted: list[tuple[str, tuple[int, int, int]]] = []

        def topic() -> None:
            name = request.text()
            places = request.array(lambda: (request.number("i"), request.number("q"), request.number("i")))
            wanted.extend((name, place) for place in places or ())

        request.array(topic)
        deadline = time.monotonic() + wait
        with self._state.changed:
            while True:
                found = [(name, *self._records(name, *at, committed_only)) for name, at in wanted]
                if sum(size for _, size, _ in found) >= max(smallest, 1) or time.monotonic() >= deadline:
                    break
                self._state.changed.wait(max(deadline - time.monotonic(), 0))
        names = list(dict.fromkeys(name for name, _, _ in found))
        return numbers("i", 0) + array(
            text(name) + array(answer for other, _, answer in found if other == name) for name in names
        )

    def _records(self, topic: str, number: int, offset: int, most: int, committed_only: bool) -> tuple[int, bytes]:
        """The size of what is given, or of an error, and the answer."""
        partition = self._state.find(topic, number)
        if partition is None or not partition.removed <= offset <= partition.end:
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if partition is None else Code.OFFSET_OUT_OF_RANGE
            return 1, numbers("ihqqi", number, code, -1, -1, 0) + content(b"")
        end = partition.stable_end if committed_only else partition.end
        given: list[bytes] = []
        size, reached = 0, offset
        first = bisect_right(partition.log, offset, key=lambda batch: batch.end)
        for batch in islice(partition.log, first, None):
            if batch.end > end or (given and size + len(batch.data) > most):
                break
            given.append(batch.data)
            size += len(batch.data)
            reached = batch.end
        aborted = [
            numbers("qq", producer, first)
            for producer, first, last in partition.aborted
            if committed_only and first < reached and last >= offset
        ]
        head = numbers("ihqq", number, 0, partition.end, partition.stable_end)
        return size, head + array(aborted) + content(b"".join(given))

    def _list_offsets(self, version: int, request: Request) -> bytes:
        request.number("i")
        committed_only = version >= 2 and request.number("b") == _COMMITTED_ONLY

        def partition(topic: str) -> bytes:
            number, timestamp = request.number("i"), request.number("q")
            found: Partition | None = self._state.find(topic, number)
            if found is None:
                return numbers("ihqq", number, Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
            last = found.stable_end if committed_only else found.end
            return numbers("ihqq", number, 0, -1, found.removed if timestamp == _EARLIEST else last)

        found = self._topics(request, partition)
        return (numbers("i", 0) if version >= 2 else b"") + found

    def _metadata(self, version: int, request: Request) -> bytes:
        asked = request.array(request.text)
        create = version < 4 or bool(request.number("b"))
        for name in asked or ():
            if create:
                self._state.create(name, -1)
        broker = numbers("i", _NODE) + text(self._host) + numbers("i", self._port) + text(None)

        def topic(name: str) -> bytes:
            found = self._state.topics.get(name)
            code = Code.NONE if found is not None else Code.UNKNOWN_TOPIC_OR_PARTITION
            node = array([numbers("i", _NODE)])
            partitions = [numbers("hii", 0, number, _NODE) + node + node for number in range(len(found or ()))]
            return numbers("h", code) + text(name) + numbers("b", 0) + array(partitions)

        names = list(self._state.topics) if asked is None else asked
        return (
            (numbers("i", 0) if version >= 3 else b"")
            + array([broker])
            + (text(_CLUSTER) if version >= 2 else b"")
            + numbers("i", _NODE)
            + array(topic(name) for name in names)
        )

    def _find_coordinator(self, version: int, _request: Request) -> bytes:
        where = numbers("i", _NODE) + text(self._host) + numbers("i", self._port)
        return numbers("ih", 0, 0) + text(None) + where if version else numbers("h", 0) + where

    def _create_topics(self, version: int, request: Request) -> bytes:
        def topic() -> bytes:
            name, partitions = request.text(), request.number("i")
            request.number("h")
            request.array(lambda: (request.number("i"), request.array(lambda: request.number("i"))))
            settings = request.array(lambda: (request.text(), request.text()))
            code = self._state.create(name, partitions, dict(settings or ()))
            return text(name) + numbers("h", code) + (text(None) if version else b"")

        found = array(request.array(topic) or ())
        return (numbers("i", 0) if version >= 2 else b"") + found

    def _delete_topics(self, version: int, request: Request) -> bytes:
        names = request.array(request.text) or ()
        found = array(text(name) + numbers("h", self._state.delete(name)) for name in names)
        return (numbers("i", 0) if version else b"") + found

    def _init_producer(self, _version: int, request: Request) -> bytes:
        return numbers("ihqh", 0, 0, *self._state.begin_producer(request.text()))

    def _add_partitions(self, _version: int, request: Request) -> bytes:
        transactional_id, producer, epoch = request.text(), request.number("q"), request.number("h")
        places: list[tuple[str, int]] = []

        def topic() -> str:
            name = request.text()
            places.extend((name, number) for number in request.array(lambda: request.number("i")) or ())
            return name

        names = request.array(topic) or ()
        code = self._state.add(transactional_id, producer, epoch, places)
        return numbers("i", 0) + array(
            text(name) + array(numbers("ih", number, code) for other, number in places if other == name)
            for name in names
        )

    def _end_transaction(self, _version: int, request: Request) -> bytes:
        transactional_id, producer, epoch = request.text(), request.number("q"), request.number("h")
        code = self._state.end(transactional_id, producer, epoch, committed=bool(request.number("b")))
        return numbers("ih", 0, code)

    def _describe_settings(self, _version: int, request: Request) -> bytes:
        def resource() -> bytes:
            kind, name = request.number("b"), request.text()
            request.array(request.text)
            settings = [
                text(key) + text(value) + numbers("bbb", 0, _OF_TOPIC, 0) + array(())
                for key, value in self._state.settings.get(name, {}).items()
            ]
            code = Code.NONE if name in self._state.topics else Code.UNKNOWN_TOPIC_OR_PARTITION
            return numbers("h", code) + text(None) + numbers("b", kind) + text(name) + array(settings)

        return numbers("i", 0) + array(request.array(resource) or ())

    @staticmethod
    def _topics(request: Request, partition: Callable[[str], bytes]) -> bytes:
        def topic() -> bytes:
            name = request.text()
            return text(name) + array(request.array(lambda: partition(name)) or ())

        return array(request.array(topic) or ())
