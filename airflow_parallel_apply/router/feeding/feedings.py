"""The store `memory` inside a router: the feedings of all pipelines, and the calls by which clients reach them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from airflow_parallel_apply.pipeline.log.mark import Mark
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.store.memory.subject import FEED, FORGET, HELD, STATS, TRIM, Subject
from airflow_parallel_apply.pipeline.store.protocol import StoreStats, Stretch
from airflow_parallel_apply.pipeline.stream.ticket import Ticket
from airflow_parallel_apply.router.engine import Budget
from airflow_parallel_apply.router.feeding.feeding import Feeding
from airflow_parallel_apply.router.feeding.guard import GuardLimits
from airflow_parallel_apply.router.service.protocol import HeldPipeline

_logger = logging.getLogger(__name__)

Body: TypeAlias = dict[str, Any]
_Key: TypeAlias = tuple[str, str, str]
"""Log, pipeline, digest of the routing."""


class Logs(Protocol):
    """The logs that a router sees."""

    def find(self, log_id: str, root: str) -> str:
        """The name of a log by its id; `root`: where its client sees it. Errors: `ConfigurationError`."""
        ...

    def reader(self, name: str, log_id: str = "") -> LogReader:
        """Errors: `ConfigurationError`, `LogError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingLimits:
    """`memory_bytes`, `disk_bytes`: of all pipelines together; without memory no rows are held. `idle`: how long a
    pipeline's rows stay when nobody asks for any.
    """

    memory_bytes: int = 256 * 2**20
    disk_bytes: int = 8 * 2**30
    guard: GuardLimits = field(default_factory=GuardLimits)
    idle: timedelta = timedelta(minutes=15)


class Feedings:
    """See `Answerer`."""

    def __init__(
        self, logs: Logs, limits: FeedingLimits, directory: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logs = logs
        self._limits = limits
        self._directory = directory
        self._clock = clock
        self._budget = Budget(memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes)
        if limits.memory_bytes:
            _logger.info(
                "holding rows for pipelines with store=memory: up to %s MB in memory, %s MB below %s",
                f"{limits.memory_bytes / 2**20:,.0f}",
                f"{limits.disk_bytes / 2**20:,.0f}",
                directory,
            )
        self._lock = threading.Lock()
        self._feedings: dict[_Key, Feeding] = {}
        self._used: dict[_Key, float] = {}

    @property
    def actions(self) -> Mapping[str, Callable[[Body], Body]]:
        """Those of `pipeline.store.memory`."""
        return {
            FEED: _checked(self._feed),
            HELD: _checked(self._held),
            FORGET: _checked(self._forget),
            TRIM: _checked(self._trim),
            STATS: _checked(self._stats),
        }

    def answer(self, ticket: Ticket) -> Iterator[pa.RecordBatch] | None:
        if ticket.routing is None or not ticket.pipeline:
            return None
        feeding = self._found((ticket.log_id, ticket.pipeline, ticket.routing.digest))
        return None if feeding is None else feeding.answer(ticket)

    def stats(self) -> Mapping[str, float]:
        """Sums over all pipelines."""
        with self._lock:
            feedings = list(self._feedings.values())
        channels = [one for feeding in feedings for one in feeding.stats()]
        return {
            "pipelines": len(feedings),
            "rows_total": sum(one.row_count for one in channels),
            "waiting_memory_bytes": sum(one.memory_bytes for one in channels),
            "waiting_disk_bytes": sum(one.file_bytes for one in channels),
            "blocked_seconds_total": sum(one.blocked_seconds for one in channels),
            "guard_seconds_total": sum(feeding.waited_seconds for feeding in feedings),
        }

    def channels(self) -> Mapping[HeldPipeline, Sequence[StoreStats]]:
        with self._lock:
            feedings = dict(self._feedings)
        return {
            HeldPipeline(feeding.name, pipeline, routing): feeding.stats()
            for (_, pipeline, routing), feeding in feedings.items()
        }

    def close(self) -> None:
        with self._lock:
            feedings = list(self._feedings.values())
            self._feedings.clear()
        for feeding in feedings:
            feeding.close()

    def _feed(self, subject: Subject, body: Body) -> Body:
        feeding = self._opened(subject)
        for after_seqno, last_seqno in body["stretches"]:
            feeding.tell(Stretch(int(after_seqno), int(last_seqno)))
        return {"log": feeding.name}

    def _held(self, subject: Subject, body: Body) -> Body:
        feeding = self._found(_key(subject))
        mark = Mark(int(body["end_offset"]), int(body["commit_time"]))
        is_held = (
            feeding is not None
            and feeding.subject.recopies == subject.recopies
            and feeding.holds(int(body["channel"]), int(body["after_seqno"]), int(body["last_seqno"]), mark)
        )
        return {"held": is_held, "log": feeding.name if feeding is not None else ""}

    def _forget(self, subject: Subject, body: Body) -> Body:
        feeding = self._found(_key(subject))
        if feeding is not None:
            feeding.forget(int(body["channel"]), int(body["after_seqno"]), int(body["last_seqno"]))
        return {}

    def _trim(self, subject: Subject, body: Body) -> Body:
        feeding = self._found(_key(subject))
        if feeding is not None:
            feeding.trim({int(channel): int(seqno) for channel, seqno in body["positions"].items()})
        return {}

    def _stats(self, subject: Subject, body: Body) -> Body:
        del body
        feeding = self._found(_key(subject))
        return {
            "channels": [asdict(one) for one in feeding.stats()] if feeding is not None else [],
            "held_seqno": feeding.held_seqno if feeding is not None else -1,
            "failure": feeding.failure if feeding is not None else "",
        }

    def _opened(self, subject: Subject) -> Feeding:
        """The feeding of a subject. One that has failed, or of a log that has passed over tables since, or that is
        served under another name by now, is replaced.
        Errors: `ConfigurationError` where this router holds no rows, or does not serve the log.
        """
        if not self._limits.memory_bytes:
            raise ConfigurationError(
                "this router holds no rows",
                op="feed",
                hint="It serves the log, from which each channel then reads. --store-memory-mb lets it hold rows.",
            )
        name = self._logs.find(subject.log_id, subject.root)
        key = _key(subject)
        ended = self._idle()
        with self._lock:
            self._used[key] = self._clock()
            found = self._feedings.get(key)
            if found is None or found.failure or (found.name, found.subject.recopies) != (name, subject.recopies):
                if found is not None:
                    ended.append(found)
                self._feedings[key] = Feeding(
                    subject,
                    name,
                    self._logs.reader(name, subject.log_id),
                    budget=self._budget,
                    directory=self._directory,
                    guard=self._limits.guard,
                )
            feeding = self._feedings[key]
        for one in ended:
            one.close()
        return feeding

    def _found(self, key: _Key) -> Feeding | None:
        with self._lock:
            if key in self._feedings:
                self._used[key] = self._clock()
            return self._feedings.get(key)

    def _idle(self) -> list[Feeding]:
        """Take out those that nobody has asked for in a while."""
        with self._lock:
            before = self._clock() - self._limits.idle.total_seconds()
            keys = [key for key in self._feedings if self._used[key] < before]
            return [self._feedings.pop(key) for key in keys]


def _key(subject: Subject) -> _Key:
    return subject.log_id, subject.pipeline, subject.routing.digest


def _checked(call: Callable[[Subject, Body], Body]) -> Callable[[Body], Body]:
    def answer(body: Body) -> Body:
        try:
            return call(Subject.from_json(body), body)
        except ParallelApplyError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                f"not a call of this version: {error!r}",
                op="feed",
                hint="The router and whoever asks it need the same release of airflow-provider-parallel-apply.",
            ) from error

    return answer
