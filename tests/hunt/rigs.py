"""The pipeline of a trial, as its parameters say."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import psycopg

from airflow_parallel_apply.pipeline.config import (
    Consistency,
    DdlPolicy,
    EpochProtocol,
    PipelineConfig,
    QueueEndpoint,
    Start,
    StoreName,
    TablePatterns,
)
from tests.hunt.step import Trial
from tests.hunt.targets.protocol import HuntedTarget
from tests.hunt.world import World
from tests.support.rig import Rig

SCHEMAS: Final = ("public", "shop", "moved")


def rig_of(world: World, trial: Trial, hunted: HuntedTarget | None) -> Rig:
    """The pipeline of a trial. `hunted`: its target, where that is of another kind; the server is the ledger's then."""
    given = trial.parameters
    limits = {name: given[name] for name in ("channels", "epoch_max_changes", "unit_max_bytes") if name in given}
    start = Start(given.get("start", "copy"))
    config = PipelineConfig(
        pipeline="p",
        log_url=str(world.directory / "log0"),
        tables=TablePatterns(include=tuple(f"{schema}.*" for schema in SCHEMAS)),
        start=start,
        create_tables=start is Start.COPY and hunted is None,
        ddl=DdlPolicy(given.get("ddl", "refuse")),
        consistency=Consistency(given.get("consistency", "channel")),
        epoch_protocol=EpochProtocol(given.get("epoch_protocol", "auto")),
        store=StoreName(given.get("store", "log")),
        router=world.router.endpoint,
        lanes=2,
        **limits,
    )
    target = owner = world.servers["target"].dsn("hunt")
    if given.get("role") == "plain":
        target = psycopg.conninfo.make_conninfo(target, user="plain")
    queue = None
    if given.get("queue") == "elsewhere":
        queue = QueueEndpoint(conn_id="queue", dsn=world.servers["source"].dsn("queue"))
    source = world.servers["source"].dsn("hunt")
    if given.get("source_role") == "reader":
        source = psycopg.conninfo.make_conninfo(source, user="reader")
    ledger = None if hunted is None else owner
    target = target if hunted is None else hunted.url
    return Rig(config=config, source_dsn=source, target_dsn=target, queue=queue, ledger_dsn=ledger)


def second_rig_of(first: Rig, trial: Trial, target_dsn: str) -> Rig:
    """Another pipeline of the same log, with a target and parameters of its own."""
    given = trial.parameters["second"]
    config = replace(
        first.config, pipeline="q", slot=f"parallel_apply_{first.config.pipeline}", channels=given["channels"],
        ddl=DdlPolicy(given["ddl"]), consistency=Consistency(given["consistency"]), store=StoreName(given["store"]),
    )  # fmt: skip
    return replace(first, config=config, target_dsn=target_dsn)
