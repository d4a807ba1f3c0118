"""A Delta lake, and what lanes and Spark's workers do with it, without either."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Branch, Merging, StagedUnit, Unit, UnitKind
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.delta.columns import lake_schema
from airflow_parallel_apply.pipeline.target.delta.connector import DeltaConnector
from airflow_parallel_apply.pipeline.target.delta.place import lake_of
from airflow_parallel_apply.pipeline.target.delta.target import DeltaTarget
from airflow_parallel_apply.pipeline.target.steps import Merge, Step
from tests.support.log_rows import Row, clustered, in_order

_attempts = count()


@dataclass
class SomeRelations:
    """Implements `Relations`."""

    relations: dict[int, Relation]

    def __call__(self, relation_id: int) -> Relation:
        return self.relations[relation_id]

    def names(self, after_seqno: int) -> Collection[tuple[str, str]]:
        return self.all_names()

    def all_names(self) -> Collection[tuple[str, str]]:
        return {(one.schema, one.table) for one in self.relations.values()}

    def definitions(self) -> Sequence[Relation]:
        return (*self.relations.values(),)

    def commit_times(self, after_seqno: int, last_seqno: int) -> CommitTimes:
        seqnos = np.arange(after_seqno + 1, last_seqno + 1)
        return CommitTimes(seqnos=seqnos, times=pa.array(seqnos, pa.timestamp("us", "UTC")))


@dataclass
class LakeRig:
    """A pipeline of `channels` whose tables lie at `url`. `seqno`: that of the last unit."""

    url: str
    relations: Sequence[Relation]
    channels: int = 1
    generation: int = 1
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.endpoint = Endpoint(conn_id="target", url=self.url)
        self.lake = lake_of(self.url)
        self.known = SomeRelations({one.relation_id: one for one in self.relations})

    def begin(self) -> LakeRig:
        """Tables without rows, and positions."""
        for relation in self.relations:
            uri = self.lake.table_uri(relation.schema, relation.table)
            if self.lake.is_local:
                Path(uri).mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                uri, schema=lake_schema(self.lake, relation), storage_options=dict(self.lake.options) or None
            )
        target = self.open()
        target.migrate()
        target.own(self.generation)
        target.lay_out(log_id="log", routing=Routing(channels=self.channels), generation=self.generation)
        return self

    def open(self) -> DeltaTarget:
        """A session of its own."""
        found = DeltaConnector().open(self.endpoint, "demo", relations=self.known, ledger=lambda: "elsewhere")
        assert isinstance(found, DeltaTarget)
        return found

    def unit(self, after: int, last: int, *, claim: str = "t", channel: int | None = 0) -> Unit:
        """A unit of one channel; of all where that is None."""
        kind: UnitKind = Branch(channel) if channel is not None else Merging((after,) * self.channels)
        return Unit(
            pipeline="demo",
            generation=self.generation,
            kind=kind,
            channels=self.channels,
            token=claim,
            after_seqno=after,
            last_seqno=last,
            row_count=0,
        )

    def stage(self, unit: Unit, rows: Sequence[Row]) -> StagedUnit:
        """As an attempt of Spark does it."""
        times = self.known.commit_times(unit.after_seqno, unit.last_seqno)
        loader = DeltaConnector().loader(self.endpoint, unit, list(self.relations), commit_times=times)
        ordered = in_order if self.lake.is_feed else clustered
        loaded = loader.load(ordered(self.known.relations, rows), f"attempt {next(_attempts)}")
        return StagedUnit(unit=unit, tables=loaded.tables, row_count=loaded.row_count, seconds=0.0)

    def apply(self, after: int, last: int, rows: Sequence[Row], *, claim: str = "t", channel: int | None = 0) -> None:
        """A claim, and the commit of one unit of it."""
        target = self.open()
        target.take(channel, generation=self.generation, token=claim)
        unit = self.unit(after, last, claim=claim, channel=channel)
        steps: list[Step] = [Merge(self.stage(unit, rows))]
        target.commit(unit, steps)

    def table(self, relation: Relation) -> DeltaTable:
        """As any reader opens it."""
        uri = self.lake.table_uri(relation.schema, relation.table)
        return DeltaTable(uri, storage_options=dict(self.lake.options) or None)

    def rows(self, relation: Relation) -> list[tuple[Any, ...]]:
        """In the order of their values."""
        found = self.table(relation).to_pyarrow_table()
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def seqnos(self) -> list[int]:
        """By channel."""
        return [at.seqno for at in self.open().positions()]

    def staged_files(self) -> list[Path]:
        """Every file that is staged."""
        return sorted(Path(self.lake.root, "_parallel_apply", "demo", "staged").rglob("*.parquet"))
