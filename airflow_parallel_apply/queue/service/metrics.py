"""Metrics for Prometheus: calls by method and outcome, queues by name, the log.

```
queue_calls_total{method,code}        queue_call_seconds{method}          queue_calls_waiting
queue_tasks{queue,state}              queue_max_claims{queue}             queue_names
queue_log_position                    queue_log_synced_position           queue_log_broken
```
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from airflow_parallel_apply.queue.memory import DataDirectory

_MAX_QUEUES: Final = 1000
"""Queues that are told by name: Prometheus keeps a series for each for ever."""

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(slots=True)
class Call:
    """One call under way."""

    code: str = "OK"
    started: float = field(default_factory=time.perf_counter)

    def ended(self, code: str) -> None:
        self.code = code


class CallMetrics:
    """Counts calls, whether or not anybody asks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        calls = Counter("queue_calls", "Calls by outcome.", ["method", "code"], registry=registry)
        seconds = Histogram(
            "queue_call_seconds",
            "Duration of calls, with waits.",
            ["method"],
            registry=registry,
            buckets=_SECONDS,
        )
        # There are as many as methods and outcomes, and to look one up costs more than to count.
        self._calls, self._seconds = cache(calls.labels), cache(seconds.labels)
        self._waiting = Gauge("queue_calls_waiting", "Calls under way.", registry=registry)

    @contextmanager
    def call(self, method: str) -> Iterator[Call]:
        """Count one."""
        call = Call()
        self._waiting.inc()
        try:
            yield call
        except BaseException:
            if call.code == "OK":
                call.ended("CANCELLED")
            raise
        finally:
            self._seconds(method).observe(time.perf_counter() - call.started)
            self._calls(method, call.code).inc()
            # Last: whoever sees no call under way finds them all counted.
            self._waiting.dec()


class DataCollector(Collector):
    """Looks at the queues and the log when asked."""

    def __init__(self, data: DataDirectory) -> None:
        self._data = data

    def collect(self) -> Iterator[GaugeMetricFamily]:
        stats = self._data.engine.listing.queue_stats()
        names = GaugeMetricFamily("queue_names", "Queues that have tasks.")
        names.add_metric([], len(stats))
        tasks = GaugeMetricFamily("queue_tasks", "Tasks by queue and state.", labels=["queue", "state"])
        claims = GaugeMetricFamily("queue_max_claims", "Most claims of a task, by queue.", labels=["queue"])
        for row in stats[:_MAX_QUEUES]:
            for state in ("claimed", "available", "future"):
                tasks.add_metric([row.queue, state], getattr(row, state))
            claims.add_metric([row.queue], row.max_claims)
        log = self._data.log
        yield from (names, tasks, claims)
        for name, help_text, value in (
            ("queue_log_position", "Changes written to the log.", log.position),
            ("queue_log_synced_position", "Changes of them that are durable.", log.synced_position),
            ("queue_log_broken", "1 when the log cannot be written any more.", int(log.broken)),
        ):
            family = GaugeMetricFamily(name, help_text)
            family.add_metric([], value)
            yield family
