"""Choosing a pipeline's store: the one that is named, or with `auto` the one that its partitioner reads least with.

A function of the configuration alone, so that whoever plans, each lane and `status` come to the same one. It follows
docs/stores.md, which has the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from airflow_parallel_apply.pipeline.config import PartitionerName, PipelineConfig, StoreName

FEW_READS: Final = 2
"""Readings of a log up to which another store gains nothing that its feeding does not cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChoice:
    """A store, never `auto`, and the reason in words; empty where it was named."""

    store: StoreName
    why: str = ""

    def __str__(self) -> str:
        return f"{self.store}, since {self.why}" if self.why else str(self.store)


def chosen_store(config: PipelineConfig) -> StoreChoice:
    """Return the store that a pipeline's channels are read through."""
    if config.commits_in_groups:
        # Whatever was named: no store serves a job of all channels.
        return StoreChoice(store=StoreName.LOG, why="with consistency=epoch one job reads the rows of all channels")
    if config.store is not StoreName.AUTO:
        return StoreChoice(store=config.store)
    if config.partitioner == PartitionerName.KEY:
        return StoreChoice(store=StoreName.LOG, why="rows are clustered by key there, so each channel reads its part")
    if config.channels <= FEW_READS:
        return StoreChoice(store=StoreName.LOG, why=f"it is read {FEW_READS} times at most")
    why = f"each of {config.channels} channels would read all of the log"
    # Channel logs lie beside the log, which nobody here sees; the router that serves it is there anyway.
    return StoreChoice(store=StoreName.MEMORY if config.is_served else StoreName.CHANNEL_LOG, why=why)
