"""Checks of calls that are wrong in any state of a queue: every backend refuses them before it looks at a task."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from airflow_parallel_apply.queue.model import Change, Insert, Json, TaskId, TaskRef

MAX_QUEUE_NAME_BYTES: Final = 512
MAX_CLAIMANT_BYTES: Final = 512
MAX_ERR_BYTES: Final = 1_000_000
MAX_SEQUENCE: Final = 2**63 - 1
MAX_ATTEMPT: Final = 2**31 - 1
MAX_CLAIMED: Final = 10_000
"""Tasks that one call may claim: the claimant must renew or finish each of them within its lease."""

_ENCODER: Final = json.JSONEncoder(allow_nan=False)
_DECODER: Final = json.JSONDecoder()

_LONGEST: Final = timedelta(days=365_000)
"""Further off than any time that a clock of four-digit years reaches: what adds to it cannot be told."""


def check_claim(queues: Iterable[str], claimant: str, lease: timedelta, limit: int) -> None:
    """Raise ValueError for a claim that names no queue that could be, a lease that no clock can hold, or no task."""
    check_names(queues)
    check_renew(claimant, lease)
    if not 1 <= limit <= MAX_CLAIMED:
        raise ValueError(f"a claim is for 1 to {MAX_CLAIMED} tasks: {limit}")


def check_renew(claimant: str, lease: timedelta) -> None:
    """Raise ValueError for a claimant without a name, or a lease that no clock can hold."""
    _check_claimant(claimant)
    _check_arrival(lease)


def check_modify(
    claimant: str,
    insert: Sequence[Insert],
    change: Sequence[Change],
    delete: Sequence[TaskRef],
    depend: Sequence[TaskRef],
) -> None:
    """Raise ValueError where ids repeat, in one list or over them, or something is out of its bounds."""
    _check_claimant(claimant)
    named: list[TaskId] = [entry.task_id for entry in insert if entry.task_id is not None]
    named += [entry.ref.task_id for entry in change]
    named += [ref.task_id for ref in (*delete, *depend)]
    if len({task_id.int for task_id in named}) < len(named):
        repeated = [str(task_id) for task_id, count in Counter(named).items() if count > 1]
        raise ValueError(f"the ids of a modify must be disjoint, more than once: {', '.join(repeated)}")
    check_names({entry.queue for entry in insert})
    check_names({entry.queue for entry in change if entry.queue is not None})
    entries: tuple[Insert | Change, ...] = (*insert, *change)
    for entry in entries:
        if entry.at is not None:
            _check_arrival(entry.at)
        if entry.sequence is not None and not -MAX_SEQUENCE - 1 <= entry.sequence <= MAX_SEQUENCE:
            raise ValueError(f"a sequence has 64 bits: {entry.sequence}")
        if entry.attempt is not None and not 0 <= entry.attempt <= MAX_ATTEMPT:
            raise ValueError(f"an attempt is 0 to {MAX_ATTEMPT}: {entry.attempt}")
        if entry.err and ("\0" in entry.err or not _fits(entry.err, MAX_ERR_BYTES)):
            raise ValueError(f"an error text has at most {MAX_ERR_BYTES} bytes of UTF-8 and no NUL")
    for one in change:
        if one.sequence is not None and one.queue is None:
            raise ValueError(f"change of {one.ref.task_id}: a sequence is given only with a transfer to another queue")


def check_names(queues: Iterable[str]) -> None:
    """Raise ValueError unless each is the name of a queue."""
    for queue in queues:
        if not queue or "\0" in queue or not _fits(queue, MAX_QUEUE_NAME_BYTES):
            raise ValueError(f"a queue's name has 1 to {MAX_QUEUE_NAME_BYTES} bytes of UTF-8 and no NUL: {queue!r}")


def to_json(value: Json) -> str:
    """A value's text, as it is kept: ASCII. Errors: `ValueError` for what JSON cannot say (NaN among it)."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a task's value must be JSON: {error}") from error


def from_json(text: str) -> Json:
    """As `json.loads`."""
    return parsed(_DECODER, text)


def parsed(decoder: json.JSONDecoder, text: str) -> Json:
    """As `decoder.decode`, which takes longer to look for blanks around a short text than to read it."""
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError:
        return decoder.decode(text)
    return value if end == len(text) else decoder.decode(text)


def _check_claimant(claimant: str) -> None:
    if not claimant or "\0" in claimant or not _fits(claimant, MAX_CLAIMANT_BYTES):
        raise ValueError(f"a claimant's name has 1 to {MAX_CLAIMANT_BYTES} bytes of UTF-8 and no NUL: {claimant!r}")


def _check_arrival(at: datetime | timedelta) -> None:
    if isinstance(at, timedelta):
        if abs(at) > _LONGEST:
            raise ValueError(f"a time so far off cannot be told: {at}")
    elif at.tzinfo is None:
        raise ValueError(f"an arrival time needs a time zone: {at}")
    elif at.tzinfo is not UTC:
        try:
            at.astimezone(UTC)
        except OverflowError as error:
            raise ValueError(f"an arrival time lies in the years 1 to 9999 of UTC: {at}") from error


def _fits(text: str, max_bytes: int) -> bool:
    """In UTF-8, which cannot write a lone surrogate."""
    try:
        return len(text.encode()) <= max_bytes
    except UnicodeEncodeError:
        return False
