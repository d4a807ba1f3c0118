"""Opening a routing's partitioner by its name: one of ours, or one that was installed beside this package.

A distribution brings one as an entry point::

    [project.entry-points."airflow_parallel_apply.partitioners"]
    by_region = "my_package:ByRegion"

which is called with the `Routing` and gives a `Partitioner`. It has to be installed wherever tasks of the pipeline run;
Spark needs nothing of it but the SQL that it makes. `tests/contract/test_partitioner.py` is the suite for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint
from typing import Final

from airflow_parallel_apply.pipeline.config import PartitionerName, PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, hint_of
from airflow_parallel_apply.pipeline.partition.by_key import ByKey
from airflow_parallel_apply.pipeline.partition.by_shard import ByShard
from airflow_parallel_apply.pipeline.partition.colocated import Colocated
from airflow_parallel_apply.pipeline.partition.protocol import Partitioner
from airflow_parallel_apply.pipeline.partition.round_robin import RoundRobin
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.partition.shard_list import read_shard_list
from airflow_parallel_apply.pipeline.schemes import installed

GROUP: Final = "airflow_parallel_apply.partitioners"

_OURS: Final[dict[str, Callable[[Routing], Partitioner]]] = {
    PartitionerName.KEY: ByKey,
    PartitionerName.SHARD: ByShard,
    PartitionerName.SHARD_LIST: ByShard,
    PartitionerName.ROUND_ROBIN: RoundRobin,
}


def routing_of(config: PipelineConfig, colocation: Sequence[Sequence[str]] = ()) -> Routing:
    """The routing that a pipeline's parameters ask for, with the shard list read. Errors: `ConfigurationError`."""
    return Routing(
        channels=config.channels,
        partitioner=config.partitioner,
        shard_by=config.shard_by,
        shards=read_shard_list(config.shard_file, channels=config.channels) if config.shard_file else None,
        # In one channel all tables are together anyway.
        colocation=tuple(tuple(tables) for tables in colocation) if config.channels > 1 else (),
        release="" if config.partitioner in _OURS else _release(_entry_point(config.partitioner)),
    )


@lru_cache(maxsize=8)
def open_partitioner(routing: Routing) -> Partitioner:
    """The partitioner of a routing. Errors: `ConfigurationError` for a name that nothing installed here has."""
    make = _OURS.get(routing.partitioner)
    if make is None:
        found = _entry_point(routing.partitioner)
        if _release(found) != routing.release:
            raise ConfigurationError(
                f"partitioner {routing.partitioner!r} is {_release(found)} here, the pipeline is routed by "
                f"{routing.release}",
                hint="Install one version of it on every worker; a new one routes once all channels are stopped.",
            )
        make = found.load()
    partitioner: Partitioner = make(routing)
    return Colocated(routing, partitioner) if routing.colocation else partitioner


def routing_findings(routing: Routing, relations: Sequence[Relation]) -> tuple[Finding, ...]:
    """The tables that the partitioner cannot place. Errors: `ConfigurationError` where there is no partitioner."""
    partitioner = open_partitioner(routing)
    refusals = [(relation.name, partitioner.refusal(relation)) for relation in relations]
    return tuple(
        Finding(
            severity=Severity.ERROR,
            side=Side.SOURCE,
            where=name,
            is_table=True,
            what=f"{name} {refusal}",
            note="Change the table or shard_by, exclude the table, or use partitioner=key.",
        )
        for name, refusal in refusals
        if refusal is not None
    )


def check_routing(routing: Routing, relations: Sequence[Relation]) -> None:
    """Refuse by name the tables that the partitioner cannot place: all findings in one `ConfigurationError`."""
    found = routing_findings(routing, relations)
    if found:
        raise ConfigurationError(
            f"the partitioner {routing.partitioner} cannot route these tables: "
            + "; ".join(finding.what for finding in found),
            op="check",
            hint=hint_of(found),
        )


def _entry_point(name: str) -> EntryPoint:
    brought = {found.name: found for found in installed(GROUP)}
    if name not in brought:
        raise ConfigurationError(
            f"parameter partitioner: {name!r} is not usable",
            hint=f"partitioner takes {', '.join([*_OURS, *sorted(brought)])}; "
            f"others come with a package that has an entry point in the group {GROUP}.",
        )
    return brought[name]


def _release(found: EntryPoint) -> str:
    return f"{found.dist.name} {found.dist.version}" if found.dist is not None else found.value
