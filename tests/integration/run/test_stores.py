"""One history through every store: the same rows, positions and counts, by key and by shard, whatever is lost."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.admin.purge import purge_log
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.apply import capture_turn
from airflow_parallel_apply.pipeline.config import Consistency, PipelineConfig, Start, StoreName
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.model.epoch import EpochKind
from airflow_parallel_apply.pipeline.run import preparing
from airflow_parallel_apply.pipeline.store.choice import chosen_store
from tests.support.local_stage import LocalStage
from tests.support.memory_router import MemoryRouter, memory_router
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

TABLE = "CREATE TABLE orders (tenant int, id int, total numeric, note text, PRIMARY KEY (tenant, id))"
EVENTS = "CREATE TABLE events (tenant int, note text)"
TENANTS = 12
TRANSACTIONS = 150


@pytest.fixture
def source(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="none",
        slot="both",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        lanes=2,
        epoch_max_changes=60,
        unit_max_bytes=4000,
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    execute(source_dsn, TABLE, EVENTS)
    return made


@pytest.fixture
def into(source: Rig, target_server: PostgresServer) -> Iterator[Callable[..., Rig]]:
    """A pipeline of the log into a database of its own, and the stages of its lanes."""
    made: list[str] = []

    def make(store: StoreName, name: str = "", **changes: Any) -> Rig:
        made.append(f"store_{uuid4().hex[:8]}")
        dsn = target_server.create_database(made[-1])
        execute(dsn, TABLE, EVENTS)
        return replace(source, target_dsn=dsn).having(pipeline=f"by_{name or store}", store=store, **changes)

    yield make
    # Origins of a database that stays take the server's room for them.
    execute(target_server.dsn(), *(f"DROP DATABASE {name} WITH (FORCE)" for name in made))


@pytest.fixture
def router(tmp_path: Path) -> Iterator[MemoryRouter]:
    with memory_router(tmp_path) as running:
        yield running


class Stages:
    """Makes the lanes' stages, and counts what the store served of them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.made: list[LocalStage] = []

    def __call__(self, opened: object) -> LocalStage:
        self.made.append(LocalStage(self.rig.config.log_url, self.rig.target, config=self.rig.config))
        return self.made[-1]

    @property
    def served(self) -> list[bool]:
        return [one for stage in self.made for one in stage.served]


def write(rig: Rig, transactions: int = TRANSACTIONS, *, seed: int = 3) -> None:
    """Random orders, mostly of one tenant each; one transaction in fifty is of two, or truncates."""
    dice = random.Random(seed)
    for number in range(transactions):
        statements = []
        tenants = [dice.randrange(TENANTS)]
        if number % 50 == 49:
            tenants.append((tenants[0] + 1) % TENANTS)
        for tenant in tenants:
            for _ in range(dice.randint(1, 4)):
                key = dice.randint(1, 8)
                if dice.random() < 0.2:
                    statements.append(f"DELETE FROM orders WHERE tenant = {tenant} AND id = {key}")
                else:
                    statements.append(
                        f"INSERT INTO orders VALUES ({tenant}, {key}, {number}.50, 'n{number}') "
                        f"ON CONFLICT (tenant, id) DO UPDATE SET total = excluded.total, note = orders.note || 'x'"
                    )
            statements.append(f"INSERT INTO events VALUES ({tenant}, 'e{number}')")
        if number == 75:
            statements = ["TRUNCATE events"]
        rig.transaction(*statements)


def told(rig: Rig) -> dict[str, Any]:
    """Read what must be the same, whatever the store. Where parallel epochs end depends on what was captured."""
    with closing(open_pipeline(rig.target, rig.config.pipeline)) as session:
        epochs = session.ledger.epochs()
        return {
            "positions": [(one.channel, one.seqno) for one in session.target.positions()],
            "rows": [sum(rows) for rows in zip(*(one.rows for one in epochs), strict=True)],
            "serial": [
                (one.first_seqno, one.last_seqno, one.reason, one.rows)
                for one in epochs
                if one.kind is EpochKind.SERIAL
            ],
            "rework": session.ledger.rework(),
            "orders": rig.rows("SELECT * FROM orders ORDER BY tenant, id"),
            "events": rig.rows("SELECT * FROM events ORDER BY tenant, note"),
        }


def applied(rig: Rig, stages: Stages, run_id: str) -> None:
    rig = replace(rig, stage=stages)
    rig.run(run_id)
    assert rig.comparison().equal


BY_SHARD: dict[str, Any] = {"partitioner": "shard", "shard_by": (("*", "tenant"),)}
ROUTINGS = [
    pytest.param({"channels": 1}, marks=pytest.mark.long, id="key 1"),
    pytest.param({"channels": 3}, marks=GATED, id="key 3"),
    pytest.param({"channels": 8}, marks=GATED, id="key 8"),
    pytest.param({"channels": 1, **BY_SHARD}, marks=pytest.mark.long, id="shard 1"),
    pytest.param({"channels": 3, **BY_SHARD}, marks=GATED, id="shard 3"),
    pytest.param({"channels": 8, **BY_SHARD}, marks=pytest.mark.long, id="shard 8"),
    pytest.param({"channels": 64}, marks=pytest.mark.long, id="key 64"),
    pytest.param({"channels": 64, **BY_SHARD}, marks=pytest.mark.long, id="shard 64"),
]


@pytest.mark.parametrize("consistency", [Consistency.CHANNEL, pytest.param(Consistency.EPOCH, marks=pytest.mark.long)])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_history_ends_the_same_through_every_store(
    source: Rig,
    into: Callable[..., Rig],
    routing: dict[str, Any],
    consistency: Consistency,
    router: MemoryRouter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capture_turn, "STEP_CHANGES", 150)
    monkeypatch.setattr(preparing, "FIRST_CAPTURE_CHANGES", 150)
    served = {"log_url": f"{router.endpoint.url}/log", "log_directory": source.config.log_url}
    rigs = {
        "served log": into(StoreName.LOG, "served_log", consistency=consistency, **served, **routing),
        "served memory": into(StoreName.MEMORY, "served_memory", consistency=consistency, **served, **routing),
        **{str(store): into(store, consistency=consistency, router=router.endpoint, **routing) for store in StoreName},
    }
    for rig in rigs.values():
        rig.prepare()
    write(source)
    found = {}
    # The first to run captures in turns, and feeds its store as it does; the others find the history captured.
    for name, rig in reversed(rigs.items()):
        stages = Stages(rig)
        applied(rig, stages, f"run {name}")
        found[name] = told(rig)
        if chosen_store(rig.config).store is StoreName.LOG:
            assert name.startswith("served") or not any(stages.served)
        else:
            # Another lane may hand out what is planned a moment before it is fed: that is read from the log.
            assert any(stages.served)
    for name in rigs:
        assert found[name] == found["log"], name


@gated
def test_what_a_store_has_lost_is_read_from_the_log_and_it_goes_when_it_is_applied(
    source: Rig, into: Callable[..., Rig]
) -> None:
    rig = into(StoreName.CHANNEL_LOG, channels=3)
    rig.prepare()
    write(source, 60)
    folder = Path(rig.config.log_url) / "channels"

    class Losing(Stages):
        def __call__(self, opened: object) -> LocalStage:
            assert list(folder.glob("*/*/*.parquet"))
            shutil.rmtree(folder)
            folder.mkdir()
            return super().__call__(opened)

    stages = Losing(rig)
    applied(rig.having(lanes=1), stages, "first")
    assert stages.served
    assert not any(stages.served)
    write(source, 30, seed=4)
    stages = Stages(rig)
    applied(rig, stages, "second")
    assert all(stages.served)
    status = read_status(rig.target, rig.config.pipeline, rig.config.log_url)
    assert status.store is not None
    assert status.store.name == "channel_log"
    assert status.store.file_count > 0
    applied(rig, stages, "third")
    assert not list(folder.glob("*/*/*.parquet")), "the next run lets go of what the target has on disk"
    write(source, 30, seed=5)
    applied(rig, stages, "fourth")
    assert list(folder.glob("*/*/*.parquet"))
    applied(rig.having(store=StoreName.LOG), Stages(rig), "by the log")
    assert not folder.exists(), "the store log leaves nothing of another one"
    write(source, 30, seed=6)
    applied(rig, stages, "fifth")
    assert list(folder.glob("*/*/*.parquet"))
    purge_log(rig.config.log_url, [rig.target])
    drop_pipeline(rig.config.pipeline, rig.source, rig.target, slot="both", log_url=rig.config.log_url)
    assert not folder.exists()
