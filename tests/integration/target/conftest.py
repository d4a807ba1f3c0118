"""A pipeline on a real target, and short ways through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache

import psycopg
import pytest

from airflow_parallel_apply.pipeline.ledger.postgres import PostgresLedger
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, RoutingChange
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Branch, Serial, StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.names_since import names_since
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget
from airflow_parallel_apply.pipeline.target.postgres.load.loader import PostgresLoader
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.support.log_rows import Row, clustered

LEASE = timedelta(seconds=30)
CLAIM = "claim1"
RUN1 = LeaseRequest(log_id="log1", owner="run1", lease=LEASE)


class Known:
    """See `Relations`."""

    def __init__(self, relations: dict[int, Relation]) -> None:
        self._relations = relations

    def __call__(self, relation_id: int) -> Relation:
        return self._relations[relation_id]

    def names(self, after_seqno: int) -> frozenset[tuple[str, str]]:
        return names_since(tuple(self._relations.values()), after_seqno)

    def all_names(self) -> frozenset[tuple[str, str]]:
        return frozenset((relation.schema, relation.table) for relation in self._relations.values())

    def definitions(self) -> tuple[Relation, ...]:
        return tuple(self._relations.values())


class Scene:
    """One pipeline, its target, and what a lane and a Spark task would do with it."""

    def __init__(self, dsn: str, ledger_dsn: str | None = None) -> None:
        self.dsn = dsn
        self.ledger_dsn = ledger_dsn
        self.relations: dict[int, Relation] = {}
        self.opened: list[PipelineSession] = []
        self.session = self.another()
        self.ledger, self.target = self.session.ledger, self.session.target
        self.session.migrate()
        self.generation = 0
        self.channels = 0
        self.attempts = iter(range(1000))

    def another(self) -> PipelineSession:
        session = Session(self.dsn, pipeline="demo")
        if self.ledger_dsn is None:
            ledger, other = PostgresLedger(session), None
        else:
            elsewhere = Session(self.ledger_dsn, pipeline="demo")
            ledger = PostgresLedger(elsewhere, target=cache(lambda: str(target.identity())))
            other = ledger.identity
        target = PostgresTarget(session, relations=Known(self.relations), ledger=other)
        self.opened.append(PipelineSession(ledger=ledger, target=target, is_one_database=other is None))
        return self.opened[-1]

    def start(self, *, channels: int = 1, owner: str = "run1") -> None:
        self.generation = self.session.acquire(replace(RUN1, owner=owner)).generation
        self.route(self.generation, channels=channels)
        self.channels = channels

    def route(self, generation: int | None, *, channels: int) -> None:
        self.session.route(RoutingChange(generation=generation, log_id="log1", routing=Routing(channels=channels)))

    def unit(
        self,
        last: int,
        *,
        after: int = -1,
        channel: int | None = 0,
        token: str = CLAIM,
        generation: int | None = None,
    ) -> Unit:
        return Unit(
            pipeline="demo",
            generation=self.generation if generation is None else generation,
            kind=Serial() if channel is None else Branch(channel),
            channels=self.channels,
            token=token,
            after_seqno=after,
            last_seqno=last,
            row_count=0,
        )

    def stage(self, unit: Unit, rows: Sequence[Row], *, batch_rows: int = 1000) -> StagedUnit:
        batches = clustered(self.relations, rows, batch_rows=batch_rows)
        loaded = self.loader(unit.channel, unit.token).load(batches, str(next(self.attempts)))
        assert loaded.row_count == len(rows)
        return StagedUnit(unit=unit, tables=loaded.tables, row_count=loaded.row_count, seconds=0)

    def loader(self, channel: int | None, token: str) -> PostgresLoader:
        relations = tuple(self.relations.values())
        return PostgresLoader(url=self.dsn, pipeline="demo", channel=channel, token=token, relations=relations)

    def apply(self, last: int, rows: Sequence[Row], *, after: int = -1) -> None:
        """Take channel 0, stage, commit."""
        unit = self.unit(last, after=after)
        self.target.take(0, generation=self.generation, token=unit.token)
        self.commit(self.stage(unit, rows))

    def commit(self, staged: StagedUnit, *, by: Target | None = None) -> None:
        (by or self.target).commit(staged.unit, [Merge(staged)])

    def run(self, text: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

    def run_at_ledger(self, text: str) -> None:
        with psycopg.connect(self.ledger_dsn or self.dsn, autocommit=True) as connection:
            connection.execute(text)

    def staging(self) -> list[str]:
        return [str(row[0]) for row in self.run("SELECT relname FROM pg_class WHERE relname LIKE 's\\_%' ORDER BY 1")]

    def seqnos(self) -> list[int]:
        return [position.seqno for position in self.target.positions()]


@pytest.fixture
def scene(target_dsn: str) -> Iterator[Scene]:
    made = Scene(target_dsn)
    yield made
    for session in made.opened:
        session.close()


@pytest.fixture
def accounts(scene: Scene, add_table: Callable[..., Relation]) -> Relation:
    scene.run("CREATE TABLE accounts (id int PRIMARY KEY, balance int, note text)")
    return add_table(1, "accounts", "id balance note", key="id")


@pytest.fixture
def add_table(scene: Scene) -> Callable[..., Relation]:
    from tests.support.log_rows import relation

    def add(relation_id: int, table: str, columns: str, **options: str) -> Relation:
        scene.relations[relation_id] = relation(relation_id, table, columns, **options)
        return scene.relations[relation_id]

    return add


def insert(seqno: int, *values: str | None, relation_id: int = 1) -> Row:
    return Row(seqno=seqno, operation="I", values=values, relation_id=relation_id)


@pytest.fixture
def three(scene: Scene, accounts: Relation) -> Scene:
    """Keys 1, 2 and 3, applied up to seqno 0."""
    scene.start()
    scene.apply(0, [insert(0, str(key), "0", "note") for key in (1, 2, 3)])
    return scene
