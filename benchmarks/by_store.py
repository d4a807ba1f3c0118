"""Measures whole runs through each store, by key and by shard with eight channels: feeding, lanes, Spark and target.

A history of transactions of one tenant each, so that by shard all of them run side by side. It is captured before; the
clock runs from the plan, which feeds the store, until both lanes have drained all channels into PostgreSQL. Stores take
turns, each into a fresh database, which is compared with the source once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.embedded.layout import RUNTIME_DIR_VARIABLE
from airflow_parallel_apply.pipeline.store.open import remove_held
from airflow_parallel_apply.router.embedded import embedded_router, stop_embedded_router
from benchmarks.histories import tenants
from benchmarks.lanes import LanesRun, SparkAccess, measure_with_feeding
from benchmarks.processors import processor_seconds
from benchmarks.settings import BenchSettings
from benchmarks.suite import warm_spark
from benchmarks.world import World, build_world

CHANNELS: Final = 8
LANES: Final = 2
_STORES: Final = (StoreName.LOG, StoreName.CHANNEL_LOG, StoreName.MEMORY)
_ROUTINGS: Final[dict[str, dict[str, Any]]] = {
    "key": {},
    "shard": {"partitioner": "shard", "shard_by": (("*", "tenant"),)},
}
_WARM_UPS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRun:
    """Medians of one partitioner and store, for a million changes."""

    partitioner: str
    store: StoreName
    seconds: float
    cpu_seconds: float


def measure_by_store(directory: Path, settings: BenchSettings, say: Callable[[str], None]) -> tuple[StoreRun, ...]:
    """Medians of BENCH_REPEATS, by turns, with BENCH_WORKLOAD_CHANGES changes."""
    os.environ[RUNTIME_DIR_VARIABLE] = str(directory / "runtime")
    history = tenants(settings.workload_changes)
    ways = [(partitioner, store) for partitioner in _ROUTINGS for store in _STORES]
    found: dict[tuple[str, StoreName], list[LanesRun]] = {way: [] for way in ways}
    with ExitStack() as stack:
        world = stack.enter_context(build_world(directory / "ends", history, repeats=0, captures=False))
        spark = stack.enter_context(warm_spark(directory, LANES))
        for _ in range(_WARM_UPS):
            _measure(world, spark, "key", StoreName.LOG, is_checked=False)
        for repeat in range(settings.repeats):
            for partitioner, store in ways:
                one = _measure(world, spark, partitioner, store, is_checked=repeat == 0)
                found[partitioner, store].append(one)
                say(f"{partitioner}, {store}: {one.seconds:.2f} s, {one.processor_seconds:.2f} of processors")
    million = 1_000_000 / history.changes
    return tuple(
        StoreRun(
            partitioner=partitioner,
            store=store,
            seconds=median(one.seconds for one in runs) * million,
            cpu_seconds=median(one.processor_seconds for one in runs) * million,
        )
        for (partitioner, store), runs in found.items()
    )


def print_by_store(console: Console, runs: tuple[StoreRun, ...]) -> None:
    """As a table."""
    table = Table(title=f"whole runs, {CHANNELS} channels, {LANES} lanes", title_justify="left", box=None)
    for name in ("partitioner", "store", "s for a million changes", "× log", "cpu s", "cpu × log"):
        table.add_column(name, justify="left" if name in ("partitioner", "store") else "right")
    by_log = {one.partitioner: one for one in runs if one.store is StoreName.LOG}
    for one in runs:
        log = by_log[one.partitioner]
        table.add_row(
            one.partitioner,
            one.store,
            f"{one.seconds:.2f}",
            f"{log.seconds / one.seconds:.2f}",
            f"{one.cpu_seconds:.2f}",
            f"{one.cpu_seconds / log.cpu_seconds:.2f}",
        )
    console.print(table)


def _measure(world: World, spark: SparkAccess, partitioner: str, store: StoreName, *, is_checked: bool) -> LanesRun:
    config = replace(world.log, channels=CHANNELS, lanes=LANES, store=store, **_ROUTINGS[partitioner])
    with ExitStack() as stack, world.database() as database:
        if store is StoreName.MEMORY:
            # Its start is no price of a run: a service runs all the time.
            stack.callback(stop_embedded_router)
            stack.enter_context(embedded_router())
        run = measure_with_feeding(
            world, database, config, spark, meter=partial(processor_seconds, world.directory.parent)
        )
        if is_checked:
            world.require_equal(database)
        remove_held(Path(config.log_url), config.pipeline)
    return run
