"""Metrics of a router for Prometheus.

```
router_streams_total{kind,from,code}    router_streams_open      router_stream_seconds{kind}
router_rows_total{from}                 router_bytes_total{from}
router_calls_total{action,code}         router_memory_bytes      router_held{name}
router_channel_rows_total{log,pipeline,routing,channel}          router_channel_blocked_seconds_total{…}
router_channel_waiting_bytes{log,pipeline,routing,channel,place}
```

`routing` is a digest: for a while behind a change of routing a pipeline is there twice. Channels are told of up to
`MOST_CHANNELS`, of all pipelines together; of more, the sums alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Final

import pyarrow as pa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from airflow_parallel_apply.pipeline.store.protocol import StoreStats
from airflow_parallel_apply.router.service.protocol import Answerer, HeldPipeline

MOST_CHANNELS: Final = 1024
"""Each is four time series."""

_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300)


@dataclass(slots=True)
class StreamCount:
    """One stream under way."""

    origin: str = "log"
    code: str = "OK"
    rows: int = 0
    size_bytes: int = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        self.rows += batch.num_rows
        self.size_bytes += batch.nbytes


class RouterMetrics:
    """Counts streams and calls, whether or not anybody asks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._streams = Counter("router_streams", "Streams by outcome.", ["kind", "from", "code"], registry=registry)
        self._seconds = Histogram(
            "router_stream_seconds", "Duration of streams.", ["kind"], registry=registry, buckets=_SECONDS
        )
        self._rows = Counter("router_rows", "Rows streamed.", ["from"], registry=registry)
        self._bytes = Counter("router_bytes", "Bytes streamed.", ["from"], registry=registry)
        self._calls = Counter("router_calls", "Small calls by outcome.", ["action", "code"], registry=registry)
        self._open = Gauge("router_streams_open", "Streams under way.", registry=registry)

    @contextmanager
    def stream(self, kind: str) -> Iterator[StreamCount]:
        """Count one. Of a caller that goes away in mid-stream the code is CANCELLED."""
        count = StreamCount()
        self._open.inc()
        try:
            yield count
        except GeneratorExit:
            count.code = "CANCELLED"
            raise
        except BaseException as error:
            count.code = type(error).__name__
            raise
        finally:
            self._open.dec()
            self._seconds.labels(kind).observe(time.perf_counter() - count.started)
            self._streams.labels(kind, count.origin, count.code).inc()
            self._rows.labels(count.origin).inc(count.rows)
            self._bytes.labels(count.origin).inc(count.size_bytes)

    @contextmanager
    def call(self, action: str) -> Iterator[None]:
        """Count one."""
        code = "OK"
        try:
            yield
        except BaseException as error:
            code = type(error).__name__
            raise
        finally:
            self._calls.labels(action, code).inc()


class HeldCollector(Collector):
    """Looks at memory, and at what the answerer holds, when asked."""

    def __init__(self, memory: Callable[[], int], answerer: Answerer | None) -> None:
        self._memory = memory
        self._answerer = answerer

    def collect(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily("router_memory_bytes", "Memory that streams from the log hold, about.")
        memory.add_metric([], self._memory())
        held = GaugeMetricFamily("router_held", "What the router holds for its pipelines.", labels=["name"])
        if self._answerer is not None:
            for name, value in self._answerer.stats().items():
                held.add_metric([name], value)
        yield from (memory, held)
        if self._answerer is not None:
            yield from _channels(self._answerer.channels())


def _channels(held: Mapping[HeldPipeline, Sequence[StoreStats]]) -> Iterator[Metric]:
    labels = ["log", "pipeline", "routing", "channel"]
    rows = CounterMetricFamily("router_channel_rows", "Rows that were fed.", labels=labels)
    blocked = CounterMetricFamily(
        "router_channel_blocked_seconds", "Time in which a channel could take nothing more.", labels=labels
    )
    waiting = GaugeMetricFamily(
        "router_channel_waiting_bytes", "Rows that nobody has read yet.", labels=[*labels, "place"]
    )
    if sum(map(len, held.values())) <= MOST_CHANNELS:
        for pipeline, channels in held.items():
            for one in channels:
                values = [*astuple(pipeline), str(one.channel)]
                rows.add_metric(values, one.row_count)
                blocked.add_metric(values, one.blocked_seconds)
                waiting.add_metric([*values, "memory"], one.memory_bytes)
                waiting.add_metric([*values, "disk"], one.file_bytes)
    yield from (rows, blocked, waiting)
