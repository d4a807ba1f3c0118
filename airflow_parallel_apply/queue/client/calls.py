"""The protocol's calls as sequences of requests to the service: generators, driven by a client that can wait.

A generator yields a `Request` and is sent the reply (for a listing, the list of replies), or yields a `Pause`; errors
are thrown in. So the blocking and the asynchronous client differ in how they wait, and in nothing else.

Errors come as the protocol's own. A modify or renewal whose connection was lost is not repeated: nobody knows whether
it was done. All other calls are, until their time is over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from airflow_parallel_apply.queue.arguments import check_claim, check_modify, check_renew, from_json, to_json
from airflow_parallel_apply.queue.model import (
    Change,
    Insert,
    QueueError,
    QueueFull,
    QueueMisconfigured,
    QueueStats,
    QueueUnavailable,
    Task,
    TaskId,
    TaskRef,
)
from airflow_parallel_apply.queue.service import queue_pb2 as pb
from airflow_parallel_apply.queue.service import wire

SERVICE: Final = "parallel_apply.queue.v1.Queue"

REPLIES: Final[dict[str, Any]] = {
    "Claim": pb.ClaimReply,
    "Modify": pb.ModifyReply,
    "Renew": pb.ModifyReply,
    "Stats": pb.StatsReply,
    "WaitEmpty": pb.WaitEmptyReply,
    "Snapshot": pb.SnapshotReply,
    "Tasks": pb.TasksReply,
}
STREAMED: Final = frozenset({"Tasks"})

_SLICE_SECONDS: Final = 20.0
"""One call waits no longer: a service that vanished without a word is noticed behind it."""
_PROBE_SECONDS: Final = 1.0
_FIRST_PAUSE_SECONDS: Final = 0.05
_LAST_PAUSE_SECONDS: Final = 1.0

_TLS_HINTS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "ca must name the authority that signed its certificate."),
    ("Hostname Verification", "Its certificate is for another host."),
    ("WRONG_VERSION_NUMBER", "It speaks no TLS: grpc://."),
    ("CERTIFICATE_REQUIRED", "It wants a certificate of the caller's: cert and key."),
)
"""By what gRPC's words contain."""

_Result = TypeVar("_Result")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of the service. `seconds`: its deadline. `waits`: for a connection where there is none."""

    method: str
    message: Any
    seconds: float
    waits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait before going on."""

    seconds: float


Steps = Generator[Request | Pause, Any, _Result]


class Calls:
    """The protocol as steps. `deadline`: of a call that waits for nothing but the service."""

    def __init__(self, *, deadline: timedelta, clock: Clock) -> None:
        self._seconds = deadline.total_seconds()
        self._clock = clock

    def claim_many(
        self,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        limit: int,
        timeout: timedelta = timedelta(0),
        wake: Sequence[str] = (),
    ) -> Steps[tuple[Task, ...]]:
        """A claim whose answer was lost is held by nobody who knows of it, until its lease ends."""
        check_claim(queues, claimant, lease, limit)
        until = self._clock() + timeout.total_seconds()
        while True:
            wait = min(max(until - self._clock(), 0.0), _SLICE_SECONDS)
            message = pb.ClaimRequest(
                queues=queues,
                claimant=claimant,
                lease=wire.duration_to_wire(lease),
                wait=wire.duration_to_wire(timedelta(seconds=wait)),
                wake=wake,
                limit=limit,
            )
            reply = yield from self._repeated("Claim", message, wait)
            if reply.tasks or reply.woken or self._clock() >= until:
                return _tasks(reply.tasks)

    def try_claim(self, queues: Sequence[str], *, claimant: str, lease: timedelta) -> Steps[Task | None]:
        """One task, or none."""
        return next(iter((yield from self.claim_many(queues, claimant=claimant, lease=lease, limit=1))), None)

    def claim(
        self,
        queues: Sequence[str],
        *,
        claimant: str,
        lease: timedelta,
        timeout: timedelta,
        wake: Sequence[str] = (),
    ) -> Steps[Task | None]:
        """As `try_claim`, with the wait of `claim_many`."""
        found = yield from self.claim_many(queues, claimant=claimant, lease=lease, limit=1, timeout=timeout, wake=wake)
        return next(iter(found), None)

    def modify(
        self,
        *,
        claimant: str,
        insert: Sequence[Insert] = (),
        change: Sequence[Change] = (),
        delete: Sequence[TaskRef] = (),
        depend: Sequence[TaskRef] = (),
    ) -> Steps[tuple[Task, ...]]:
        """Also `ValueError`, for a call that no state of the queue could make right, or that exceeds a limit."""
        check_modify(claimant, insert, change, delete, depend)
        insert_texts = [to_json(entry.value) for entry in insert]
        change_texts = [to_json(entry.value) for entry in change]
        message = pb.ModifyRequest(
            claimant=claimant,
            insert=map(wire.insert_to_wire, insert, insert_texts),
            change=map(wire.change_to_wire, change, change_texts),
            delete=map(wire.ref_to_wire, delete),
            depend=map(wire.ref_to_wire, depend),
        )
        reply = yield from _asked("Modify", message, self._seconds)
        _check_done(reply)
        asked = list(zip(insert, insert_texts, strict=True))
        return tuple(wire.modified_from_wire(reply, asked, change_texts, from_json))

    def renew(self, task: Task, *, claimant: str, lease: timedelta) -> Steps[Task]:
        check_renew(claimant, lease)
        message = pb.RenewRequest(ref=wire.ref_to_wire(task.ref), claimant=claimant, lease=wire.duration_to_wire(lease))
        reply = yield from _asked("Renew", message, self._seconds)
        _check_done(reply)
        (renewed,) = _tasks(reply.tasks)
        return renewed

    def tasks(
        self,
        queue: str,
        *,
        claimant: str | None = None,
        limit: int | None = None,
        ids: Sequence[TaskId] = (),
        after: Task | None = None,
        omit_values: bool = False,
    ) -> Steps[tuple[Task, ...]]:
        message = pb.TasksRequest(
            queue=queue,
            claimant=claimant,
            limit=limit,
            ids=[task_id.bytes for task_id in ids],
            after=None if after is None else wire.place_to_wire(after),
            omit_values=omit_values,
        )
        pages = yield from self._repeated("Tasks", message, 0)
        return tuple(task for page in pages for task in _tasks(page.tasks))

    def queue_stats(
        self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), limit: int | None = None
    ) -> Steps[tuple[QueueStats, ...]]:
        message = pb.StatsRequest(prefix=prefix, exact=exact, limit=limit)
        return wire.stats_from_wire((yield from self._repeated("Stats", message, 0)))

    def wait_empty(self, *, prefix: Sequence[str] = (), exact: Sequence[str] = (), timeout: timedelta) -> Steps[bool]:
        until = self._clock() + timeout.total_seconds()
        while True:
            wait = min(max(until - self._clock(), 0.0), _SLICE_SECONDS)
            message = pb.WaitEmptyRequest(
                prefix=prefix, exact=exact, wait=wire.duration_to_wire(timedelta(seconds=wait))
            )
            reply = yield from self._repeated("WaitEmpty", message, wait)
            if reply.empty or self._clock() >= until:
                return bool(reply.empty)

    def snapshot(self) -> Steps[str]:
        """Let the service take a snapshot now: its file's name."""
        reply = yield from _asked("Snapshot", pb.SnapshotRequest(), max(self._seconds, 600.0))
        return str(reply.name)

    def _repeated(self, method: str, message: Any, wait: float) -> Steps[Any]:
        """Again when the service was away, until the call's time is over."""
        until = self._clock() + self._seconds + wait
        pause = _FIRST_PAUSE_SECONDS
        while True:
            left = max(until - self._clock(), 0.001)
            try:
                return (yield from _asked(method, message, left))
            except QueueFull:
                raise
            except QueueUnavailable:
                if self._clock() + pause >= until:
                    raise
            # Not all at once, where many clients lost one service.
            yield Pause(seconds=pause * random.uniform(0.5, 1))  # noqa: S311
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)


class NoAnswer(QueueUnavailable):
    """The call's time was over, for a reason that gRPC does not tell one who waits."""


def _asked(method: str, message: Any, seconds: float) -> Steps[Any]:
    """The reply. A call that waited in vain for a connection is followed by one that does not, and so is told why."""
    try:
        return (yield Request(method=method, message=message, seconds=seconds))
    except NoAnswer:
        try:
            probe = pb.StatsRequest(exact=["-"], limit=1)
            yield Request(method="Stats", message=probe, seconds=_PROBE_SECONDS, waits=False)
        except NoAnswer:
            pass
        except QueueUnavailable as why:
            raise why from None
        raise


def translated(error: grpc.RpcError, target: str) -> QueueError | ValueError:
    """Translate a gRPC status into the error that a queue's caller expects."""
    code, details = error.code(), error.details() or ""
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT:
            return ValueError(details)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            # gRPC's own words, before the service saw the message.
            return ValueError(f"the call is larger than the queue's service takes: {details}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return QueueFull(details)
        case grpc.StatusCode.UNAUTHENTICATED:
            return QueueMisconfigured(f"{details}. Hint: grpcs://:token@host:port.")
        case grpc.StatusCode.UNIMPLEMENTED:
            return QueueMisconfigured(f"{target} is no queue service of this version: {details}")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return NoAnswer(f"the queue's service at {target} did not answer in time")
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            hint = next((f". Hint: {text}" for sign, text in _TLS_HINTS if sign in details), "")
            return QueueUnavailable(f"the queue's service at {target} cannot be reached: {details}{hint}")
        case _:
            return QueueError(f"the queue's service refused a call: {code.name} {details}")


def path_of(method: str) -> str:
    """The path of a call on the wire."""
    return f"/{SERVICE}/{method}"


def methods_of(channel: grpc.Channel | grpc.aio.Channel) -> dict[str, Callable[..., Any]]:
    """Every call of the service by its name, on either kind of channel."""
    return {
        method: (channel.unary_stream if method in STREAMED else channel.unary_unary)(
            path_of(method), request_serializer=_to_bytes, response_deserializer=reply.FromString
        )
        for method, reply in REPLIES.items()
    }


def _to_bytes(message: Any) -> bytes:
    """A request, as gRPC wants it written."""
    content: bytes = message.SerializeToString()
    return content


def _check_done(reply: pb.ModifyReply) -> None:
    if reply.HasField("refused"):
        raise wire.refused_from_wire(reply.refused)


def _tasks(messages: Iterable[pb.Task]) -> tuple[Task, ...]:
    return tuple(
        wire.task_from_wire(message, value=from_json(message.value) if message.HasField("value") else None)
        for message in messages
    )
