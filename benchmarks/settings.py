"""Settings of `make bench`: the variables BENCH_…, checked once. Empty means the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_parallel_apply.pipeline.config import MAX_CHANNELS
from airflow_parallel_apply.pipeline.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """One run of the benchmark. Errors: `ConfigurationError`, which names the variable and what it takes."""

    transactions: int = 150_000
    scale: int = 10
    """100,000 accounts each."""
    repeats: int = 3
    """Measurements of a kind; the median counts."""
    warm_ups: int = 6
    """Runs of a new Spark server before the others: its JVM compiles what they use. Told apart, and not hidden."""
    channels: tuple[int, ...] = (1, 2, 4)
    workload_changes: int = 300_000
    """Changes of each history of `workloads`, but the one with the large transaction."""

    def __post_init__(self) -> None:
        for name in ("transactions", "scale", "repeats", "warm_ups", "workload_changes"):
            if getattr(self, name) < 1:
                raise _wrong(f"BENCH_{name.upper()}", str(getattr(self, name)), "a positive number")
        if not self.channels or not all(1 <= count <= MAX_CHANNELS for count in self.channels):
            raise _wrong("BENCH_CHANNELS", str(self.channels), f"numbers of 1 to {MAX_CHANNELS}, such as 1,2,4")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BenchSettings:
        """Read BENCH_TRANSACTIONS, _SCALE, _REPEATS, _WARM_UPS, _CHANNELS and _WORKLOAD_CHANGES."""
        default = cls()

        def number(variable: str, otherwise: int) -> int:
            text = environment.get(variable, "").strip()
            return _number(variable, text) if text else otherwise

        channels = environment.get("BENCH_CHANNELS", "").strip()
        return cls(
            transactions=number("BENCH_TRANSACTIONS", default.transactions),
            scale=number("BENCH_SCALE", default.scale),
            repeats=number("BENCH_REPEATS", default.repeats),
            warm_ups=number("BENCH_WARM_UPS", default.warm_ups),
            workload_changes=number("BENCH_WORKLOAD_CHANGES", default.workload_changes),
            channels=tuple(_number("BENCH_CHANNELS", text) for text in channels.split(","))
            if channels
            else default.channels,
        )


def _number(name: str, text: str) -> int:
    try:
        return int(text.strip().replace("_", ""))
    except ValueError as error:
        raise _wrong(name, text, "a whole number") from error


def _wrong(name: str, value: str, takes: str) -> ConfigurationError:
    return ConfigurationError(f"{name}={value} is not usable", op="bench", hint=f"{name} takes {takes}.")
