"""The queue's service answers clearly whatever foreign callers send, and where it has no room."""

from __future__ import annotations

import errno
import os
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.queue import DependencyError, Insert, Queue, QueueFull, TaskRef, open_queue
from airflow_parallel_apply.queue.client.calls import REPLIES, path_of
from airflow_parallel_apply.queue.memory import DataLimits, Disk
from airflow_parallel_apply.queue.service import queue_pb2 as pb
from airflow_parallel_apply.queue.service.limits import ServiceLimits
from tests.support.queue_service import ServedQueue
from tests.support.queue_wire import refusal
from tests.support.variants import gated

LEASE = timedelta(minutes=5)

VARINTS = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1), st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64 - 1]))
NAMES = st.one_of(st.text(max_size=20), st.text(st.characters(codec=None), max_size=20), st.just("x" * 600))


def varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def field(number: int, content: int | bytes) -> bytes:
    """One field of a message, of whichever type comes to it."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


CONTENTS = st.recursive(
    st.one_of(
        VARINTS,
        st.binary(max_size=40),
        st.binary(min_size=16, max_size=16),
        NAMES.map(lambda name: name.encode("utf-8", "surrogatepass")),
        st.sampled_from([b"{}", b"1", b"NaN", b'"' + b"x" * 150_000 + b'"', b"[" * 50_000]),
    ),
    lambda inner: st.lists(st.tuples(st.integers(1, 9), inner), max_size=5).map(
        lambda fields: b"".join(field(*one) for one in fields)
    ),
    max_leaves=12,
)
MESSAGES = st.one_of(
    st.lists(st.tuples(st.integers(1, 9), CONTENTS), max_size=8).map(
        lambda fields: b"".join(field(*one) for one in fields)
    ),
    st.binary(max_size=60),
)
INT64 = st.one_of(st.integers(-2, 40), st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1]))
TEXTS = st.one_of(st.sampled_from(["q", "p"]), st.sampled_from(["q", "p"]), st.text(max_size=9), st.just("x" * 600))
VALUES = st.one_of(st.sampled_from(["1", '{"a": [null]}', "", "{", "Infinity"]), st.text(max_size=9))
IDS = st.one_of(st.integers(0, 9).map(lambda n: bytes([n] * 16)), st.binary(max_size=20))
ARRIVALS = st.one_of(st.none(), st.builds(pb.Arrival, at=INT64), st.builds(pb.Arrival, delay=INT64))
MAYBE = st.one_of(st.none(), INT64)
REFS = st.builds(pb.TaskRef, id=IDS, version=st.one_of(st.integers(0, 2), INT64))
INSERTS = st.builds(
    pb.Insert, queue=TEXTS, value=VALUES, sequence=MAYBE, at=ARRIVALS, id=st.one_of(st.none(), IDS), attempt=INT64,
    err=TEXTS, skip_colliding=st.booleans(),
)  # fmt: skip
CHANGES = st.builds(
    pb.Change, ref=REFS, value=VALUES, queue=st.one_of(st.none(), TEXTS), sequence=MAYBE, at=ARRIVALS,
    delayed=st.booleans(), attempt=MAYBE, err=st.one_of(st.none(), TEXTS),
)  # fmt: skip
SHORT_WAITS = st.sampled_from([0, 1, -1, -(2**63)])
REQUESTS = {
    "Claim": st.builds(
        pb.ClaimRequest, queues=st.lists(TEXTS, max_size=3), claimant=TEXTS, lease=INT64, wait=SHORT_WAITS,
        wake=st.lists(TEXTS, max_size=2), limit=INT64,
    ),
    "Modify": st.builds(
        pb.ModifyRequest, claimant=TEXTS, insert=st.lists(INSERTS, max_size=2), change=st.lists(CHANGES, max_size=2),
        delete=st.lists(REFS, max_size=2), depend=st.lists(REFS, max_size=2),
    ),
    "Renew": st.builds(pb.RenewRequest, ref=REFS, claimant=TEXTS, lease=INT64),
    "Tasks": st.builds(
        pb.TasksRequest, queue=TEXTS, claimant=st.one_of(st.none(), TEXTS), limit=MAYBE, ids=st.lists(IDS, max_size=2),
        after=st.one_of(st.none(), st.builds(pb.Task, id=IDS, at=INT64, sequence=MAYBE)), omit_values=st.booleans(),
    ),
    "Stats": st.builds(pb.StatsRequest, prefix=st.lists(TEXTS), exact=st.lists(TEXTS), limit=MAYBE),
    "WaitEmpty": st.builds(pb.WaitEmptyRequest, prefix=st.lists(TEXTS), exact=st.lists(TEXTS), wait=SHORT_WAITS),
}  # fmt: skip
"""Messages of the right form, with values from anywhere."""
FORMED = st.sampled_from(sorted(REQUESTS)).flatmap(
    lambda method: REQUESTS[method].map(lambda message: (method, message.SerializeToString()))
)

CLEAR = {
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED,
    # Of what happened to be a claim that waits.
    grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedQueue]:
    one = ServedQueue(
        tmp_path / "queue",
        limits=ServiceLimits(max_value_bytes=100_000, max_entries=10_000, max_message_bytes=4 * 2**20),
        data_limits=DataLimits(max_queue_tasks=20_000),
    )
    yield one
    one.stop()


def put(queue: Queue, *inserts: Insert) -> Any:
    return queue.modify(claimant="maker", insert=inserts)


def test_whatever_is_sent_is_answered_clearly_and_the_service_stays_up(served: ServedQueue) -> None:
    with grpc.insecure_channel(served.url.removeprefix("grpc://")) as channel:

        @settings(
            max_examples=int(os.environ.get("QUEUE_FUZZ_EXAMPLES") or 300), deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(st.one_of(FORMED, FORMED, st.tuples(st.sampled_from(sorted(REPLIES)), MESSAGES)))
        def send(request: tuple[str, bytes]) -> None:
            method, content = request
            make = channel.unary_stream if method == "Tasks" else channel.unary_unary
            call = make(path_of(method), request_serializer=bytes, response_deserializer=REPLIES[method].FromString)
            said = ""
            try:
                reply = call(content, timeout=2)
                list(reply) if method == "Tasks" else reply
            except grpc.RpcError as refused:
                said = refused.details() or "nothing"
                met[refused.code()] += 1
            else:
                met[method] += 1
            assert set(met) <= CLEAR | set(REPLIES), (method, content, said)
            assert said != "nothing"

        met: Counter[Any] = Counter()
        send()
    # Both happened: what was refused, and what was done.
    assert met[grpc.StatusCode.INVALID_ARGUMENT]
    assert set(met) & set(REPLIES)
    queue = open_queue(served.url)
    put(queue, Insert(queue="alive"))
    assert [row.queue for row in queue.queue_stats(exact=["alive"])] == ["alive"]
    queue.close()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="{")]), "must be JSON"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q")]), "must be JSON"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="NaN")]), "JSON has no NaN"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="[" * 90_000)]), "must be JSON"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value='"' + "x" * 200_000)]), "at most 100000"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="1", id=b"short")]), "an id has 16 bytes"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="1", attempt=-1)]), "an attempt is"),
        (pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="", value="1")]), "queue's name"),
        (pb.ModifyRequest(insert=[pb.Insert(queue="q", value="1")]), "claimant's name"),
        (
            pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="1", at=pb.Arrival(at=2**63 - 1))]),
            "no time",
        ),
        (
            pb.ModifyRequest(claimant="a", insert=[pb.Insert(queue="q", value="1", at=pb.Arrival(delay=-(2**63)))]),
            "so far off",
        ),
        (pb.ModifyRequest(claimant="a", delete=[pb.TaskRef(id=b"x" * 16)] * 2), "disjoint"),
        (pb.ModifyRequest(claimant="a", delete=[pb.TaskRef(id=b"x" * 16)] * 10_001), "at most 10000 entries"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_modify_that_no_client_of_ours_sends_is_refused_with_what_is_wrong(
    served: ServedQueue, message: pb.ModifyRequest, said: str
) -> None:
    code, details = refusal(served.url, "Modify", message.SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert said in details
    assert served.data.engine.listing.queue_stats() == ()


@gated
def test_ten_thousand_ids_in_one_modify_are_all_answered(served: ServedQueue) -> None:
    queue = open_queue(served.url)
    made = put(queue, *(Insert(queue="q", value=n) for n in range(10_000)))
    assert [task.value for task in made] == list(range(10_000))
    with pytest.raises(DependencyError) as refused:
        queue.modify(claimant="a", delete=[TaskRef(task_id=task.task_id, version=7) for task in made])
    assert len(refused.value.deletes) == 10_000
    assert queue.tasks("q", limit=10) == tuple(sorted(made, key=lambda task: task.task_id)[:10])
    queue.modify(claimant="a", delete=[task.ref for task in made])
    queue.close()


@gated
def test_limits_are_answered_as_what_they_are(served: ServedQueue) -> None:
    queue = open_queue(served.url)
    with pytest.raises(ValueError, match="at most 100000 bytes"):
        put(queue, Insert(queue="q", value="x" * 100_000))
    with pytest.raises(ValueError, match="larger than the queue's service takes"):
        put(queue, *(Insert(queue="q", value="x" * 90_000) for _ in range(50)))
    for _ in range(2):
        put(queue, *(Insert(queue="full") for _ in range(10_000)))
    with pytest.raises(QueueFull, match="queue full has 20000 tasks and may have 20000"):
        put(queue, Insert(queue="full"))
    task = queue.try_claim(["full"], claimant="a", lease=LEASE)
    assert task is not None
    queue.modify(claimant="a", delete=[task.ref])
    put(queue, Insert(queue="full"))
    queue.close()


@gated
def test_queues_are_named_by_any_character_but_nul(served: ServedQueue) -> None:
    by_class: dict[str, str] = {}
    for code in range(1, sys.maxunicode + 1):
        by_class.setdefault(unicodedata.category(chr(code)), chr(code))
    surrogate = by_class.pop("Cs")
    queue = open_queue(served.url)
    names = sorted([*by_class.values(), "".join(by_class.values())])
    put(queue, *(Insert(queue=name, value=name) for name in names))
    assert [row.queue for row in queue.queue_stats()] == names
    for name in names:
        task = queue.try_claim([name], claimant=name, lease=LEASE)
        assert task is not None
        assert (task.queue, task.value, task.claimant) == (name, name, name)
    with pytest.raises(ValueError, match="queue's name"):
        put(queue, Insert(queue=surrogate))
    queue.close()


def test_on_a_full_disk_the_service_refuses_modifies_and_goes_on_reading(tmp_path: Path) -> None:
    full = False

    def write(descriptor: int, content: bytes, offset: int) -> int:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(descriptor, content, offset)

    served = ServedQueue(tmp_path / "queue", disk=Disk(write=write))
    queue = open_queue(served.url)
    kept = put(queue, Insert(queue="q", value=1))
    full = True
    with pytest.raises(QueueFull, match="No space left on device; nothing was done"):
        put(queue, Insert(queue="q", value=2))
    with pytest.raises(QueueFull):
        queue.try_claim(["q"], claimant="a", lease=LEASE)
    assert queue.tasks("q") == kept
    assert queue.queue_stats()[0].available == 1
    full = False
    assert queue.try_claim(["q"], claimant="a", lease=LEASE) is not None
    queue.close()
    served.stop()
