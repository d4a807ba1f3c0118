"""Settings of `python -m benchmarks queue` and `… queue-latency`: the variables BENCH_QUEUE_…, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from airflow_parallel_apply.pipeline.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBenchSettings:
    """One run. Errors: `ConfigurationError`, which names the variable and what it takes."""

    tasks: int = 50_000
    value_bytes: int = 200
    workers: int = 20
    batch: int = 200
    """Tasks of one call, where calls have several."""
    repeats: int = 1
    """Repetitions of everything; the median counts."""
    large_tasks: int = 1_000_000
    """Tasks of the queue whose latencies are measured."""
    large_seconds: int = 30
    """Duration of each of its measurements."""
    large_workers: int = 4
    """Clients that claim and modify meanwhile."""
    large_rate: int = 100
    """Claims of all of them a second, and as many modifies."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if getattr(self, one.name) < 1:
                raise _wrong(one.name, str(getattr(self, one.name)), "a positive number")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> QueueBenchSettings:
        """Read BENCH_QUEUE_TASKS and so on; empty means the default."""
        given = {}
        for one in fields(cls):
            text = environment.get(_variable(one.name), "").strip()
            if text:
                try:
                    given[one.name] = int(text.replace("_", ""))
                except ValueError as error:
                    raise _wrong(one.name, text, "a whole number") from error
        return cls(**given)


def _variable(name: str) -> str:
    return f"BENCH_QUEUE_{name.upper()}"


def _wrong(name: str, value: str, takes: str) -> ConfigurationError:
    return ConfigurationError(
        f"{_variable(name)}={value} is not usable", op="bench", hint=f"{_variable(name)} takes {takes}."
    )
