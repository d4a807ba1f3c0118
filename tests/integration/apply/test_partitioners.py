"""Each partitioner end to end: transactions stay whole, what runs alone says why, and both sides are equal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError, PlanError
from airflow_parallel_apply.pipeline.partition.open import routing_of
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits
from airflow_parallel_apply.router.explain import Explanation, explain
from tests.support.partitioners import by_letter_installed
from tests.support.rig import Rig, execute
from tests.support.variants import gated

ORDERS = "CREATE TABLE orders (tenant text, id int, total numeric, PRIMARY KEY (tenant, id))"
EVENTS = "CREATE TABLE events (tenant text, note text)"
WHOLE = "CREATE TABLE loose (tenant text, v int); ALTER TABLE loose REPLICA IDENTITY FULL"
LIST = """
default = "hash"
critical = ["billing"]
[channels]
"a" = 0
"b" = 3
"""


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=4,
        lanes=2,
        tables=TablePatterns(include=("*.*",)),
        epoch_max_changes=50,
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


def by_shard(rig: Rig, shard_by: Any = (("*", "tenant"),)) -> Rig:
    return rig.having(partitioner="shard", shard_by=shard_by)


def by_list(rig: Rig, text: str, directory: Path) -> Rig:
    path = directory / "shards.toml"
    path.write_text(text)
    return rig.having(partitioner="shard_list", shard_by=(("*", "tenant"),), shard_file=str(path))


def explained(rig: Rig) -> Explanation:
    limits = EpochLimits(max_changes=50, max_bytes=10**9)
    return explain(rig.config.log_url, routing=routing_of(rig.config), limits=limits)


def tenants_at_work(rig: Rig, transactions: int, *, tenants: str = "abcdefgh") -> None:
    """Random orders, each transaction of one tenant."""
    source = random.Random(7)
    known: set[tuple[str, int]] = set()
    for _ in range(transactions):
        tenant = source.choice(tenants)
        statements = []
        for _ in range(source.randint(1, 4)):
            number = source.randint(1, 5)
            place = f"WHERE tenant = '{tenant}' AND id = {number}"
            if (tenant, number) not in known:
                known.add((tenant, number))
                statements.append(f"INSERT INTO orders VALUES ('{tenant}', {number}, {source.random():.4f})")
            elif source.random() < 0.4:
                known.discard((tenant, number))
                statements.append(f"DELETE FROM orders {place}")
            else:
                statements.append(f"UPDATE orders SET total = total + 1.10 {place}")
            statements.append(f"INSERT INTO events VALUES ('{tenant}', 'x')")
        rig.transaction(*statements)


@gated
def test_tenants_are_shards_and_their_transactions_stay_whole(rig: Rig) -> None:
    rig = by_shard(rig)
    rig.both(ORDERS, EVENTS)
    rig.prepare()
    tenants_at_work(rig, 80)
    rig.run()
    assert rig.comparison().equal
    # By default the store follows the partitioner: each channel has read a log of its own.
    assert (Path(rig.config.log_url) / "channels").is_dir()
    found = explained(rig)
    assert found.critical == {}
    assert sum(1 for rows in found.rows if rows) > 1
    tenants_at_work(rig, 20, tenants="xyz")
    rig.run()
    assert rig.comparison().equal


def test_a_transaction_over_two_shards_runs_alone_and_so_does_one_without_a_shard(rig: Rig) -> None:
    rig = by_shard(rig)
    rig.both(ORDERS, EVENTS)
    rig.prepare()
    rig.transaction("INSERT INTO orders VALUES ('a', 1, 1)", "INSERT INTO orders VALUES ('b', 1, 1)")
    rig.transaction("INSERT INTO events VALUES (NULL, 'nobody')")
    rig.transaction("INSERT INTO events VALUES ('', 'nobody')", "INSERT INTO events VALUES ('a', 'somebody')")
    rig.transaction("UPDATE orders SET tenant = 'c' WHERE tenant = 'a'")
    rig.transaction("UPDATE orders SET total = 7 WHERE tenant = 'c'")
    rig.transaction("DELETE FROM orders WHERE tenant = 'b'")
    rig.transaction("TRUNCATE events")
    rig.run()
    assert rig.comparison().equal
    assert explained(rig).critical == {"several shards": 2, "shard unknown": 2, "truncate": 1}


@gated
def test_explain_says_what_a_pipeline_would_refuse(rig: Rig) -> None:
    rig.both(ORDERS)
    rig.prepare()
    rig.transaction("INSERT INTO orders VALUES ('a', 1, 1)")
    rig.run()
    assert explained(rig).refused == ()
    assert explained(by_shard(rig)).refused == ()
    (refused,) = explained(by_shard(rig, (("*", "total"),))).refused
    assert refused.startswith("public.orders has total outside of its key")


@gated
def test_a_table_without_an_expression_is_always_critical(rig: Rig) -> None:
    rig = by_shard(rig, (("public.orders", "tenant"),))
    rig.both(ORDERS, EVENTS)
    rig.prepare()
    rig.transaction("INSERT INTO orders VALUES ('a', 1, 1)")
    rig.transaction("INSERT INTO events VALUES ('a', 'x')")
    rig.run()
    assert rig.comparison().equal
    assert explained(rig).critical == {"shard unknown": 1}


@gated
@pytest.mark.parametrize(
    ("table", "expression", "named"),
    [
        ("CREATE TABLE t (id int PRIMARY KEY, tenant text)", "tenant", "tenant outside of its key"),
        ("CREATE TABLE t (id int PRIMARY KEY)", "tenant", "no column tenant"),
        ("CREATE TABLE t (tenant text PRIMARY KEY)", "tenant % 4", "% takes integers"),
        ("CREATE TABLE t (tenant interval PRIMARY KEY)", "tenant", "type interval"),
        ("CREATE TABLE t (tenant text PRIMARY KEY)", "upper(tenant)", "is not usable"),
    ],
)
def test_a_table_that_has_no_shard_is_refused_by_name_before_anything_is_made(
    rig: Rig, table: str, expression: str, named: str
) -> None:
    rig.both(table)
    with pytest.raises(ConfigurationError, match=named) as raised:
        by_shard(rig, (("*", expression),)).prepare()
    assert raised.value.hint
    assert (
        rig.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()", side="source") == []
    )


@gated
def test_a_shard_may_lie_in_the_replica_identity(rig: Rig) -> None:
    rig = by_shard(rig)
    rig.both(
        "CREATE TABLE t (id int NOT NULL, tenant text NOT NULL, v int)",
        "CREATE UNIQUE INDEX t_identity ON t (tenant, id)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_identity",
    )
    rig.prepare()
    for number in range(20):
        rig.write(f"INSERT INTO t VALUES ({number}, 'tenant {number % 5}', 0)")
    rig.write(
        "UPDATE t SET v = id", "DELETE FROM t WHERE tenant = 'tenant 3'", "UPDATE t SET tenant = 'z' WHERE id = 1"
    )
    rig.run()
    assert rig.comparison().equal


@gated
def test_equal_keys_of_another_text_stay_in_their_shard(rig: Rig) -> None:
    rig = by_shard(rig)
    rig.both("CREATE TABLE t (tenant numeric PRIMARY KEY, v int)")
    rig.prepare()
    for _ in range(3):
        rig.write(
            "INSERT INTO t VALUES (1.0, 1)", "UPDATE t SET v = 2", "DELETE FROM t", "INSERT INTO t VALUES (1.000, 3)"
        )
        rig.write("UPDATE t SET tenant = 1.00", "DELETE FROM t")
    rig.write("INSERT INTO t VALUES (1.00, 4)")
    rig.run()
    assert rig.comparison().equal
    assert explained(rig).critical == {}


@gated
def test_a_list_gives_shards_their_channels(rig: Rig, tmp_path: Path) -> None:
    rig = by_list(rig, LIST, tmp_path)
    rig.both(ORDERS, EVENTS)
    rig.prepare()
    tenants_at_work(rig, 40, tenants="aab")
    rig.transaction("INSERT INTO events VALUES ('billing', 'x')")
    rig.run()
    assert rig.comparison().equal
    found = explained(rig)
    assert found.critical == {"critical shard": 1}
    parallel = [epoch.rows for epoch in found.epochs if epoch.kind == "parallel"]
    assert {index for rows in parallel for index, count in enumerate(rows) if count} == {0, 3}


@gated
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[channels]\na = 4", "gives a the channel 4, and the pipeline has 4"),
        ("default = 9\n[channels]", "gives default the channel 9"),
        ("[channels]\na = -1", "gives a the channel -1"),
        ("a = 1", "unknown entries: a"),
        ("channels = 3", "no \\[channels\\]"),
        ("[channels", "is not TOML"),
        ("hash = 'md5'\n[channels]", "hash = 'md5'"),
        ("critical = ['a']\n[channels]\na = 1", "names a as critical and with a channel"),
        ("critical = 'a'\n[channels]", "critical that is not a list"),
    ],
)
def test_a_list_that_does_not_fit_is_refused_before_anything_is_made(
    rig: Rig, tmp_path: Path, text: str, named: str
) -> None:
    rig.both(ORDERS)
    with pytest.raises(ConfigurationError, match=named) as raised:
        by_list(rig, text, tmp_path).prepare()
    assert raised.value.hint


@gated
def test_another_list_is_another_routing_and_waits_for_equal_positions(rig: Rig, tmp_path: Path) -> None:
    rig = by_list(rig, LIST, tmp_path)
    rig.both(ORDERS, EVENTS)
    rig.prepare()
    tenants_at_work(rig, 20)
    rig.run()
    by_list(rig, LIST.replace('"a" = 0', '"a" = 1'), tmp_path)
    tenants_at_work(rig, 20, tenants="mno")
    rig.run()
    assert rig.comparison().equal
    by_list(rig, LIST.replace('"a" = 0', '"a" = 2'), tmp_path)
    execute(rig.target_dsn, "UPDATE parallel_apply.position SET seqno = seqno - 1 WHERE channel = 2")
    with pytest.raises(PlanError, match="the routing changed"):
        rig.prepare()


@gated
def test_round_robin_takes_transactions_in_turn(rig: Rig) -> None:
    rig = rig.having(partitioner="round_robin")
    rig.both(EVENTS)
    rig.prepare()
    for number in range(40):
        rig.transaction(f"INSERT INTO events VALUES ('a', '{number}')", f"INSERT INTO events VALUES ('b', '{number}')")
    rig.run()
    assert rig.comparison().equal
    assert explained(rig).rows == (20, 20, 20, 20)


@gated
@pytest.mark.parametrize(("table", "named"), [(ORDERS, "orders has a key"), (WHOLE, "has REPLICA IDENTITY FULL")])
def test_round_robin_refuses_a_table_whose_rows_change_by_name(rig: Rig, table: str, named: str) -> None:
    rig.both(*table.split(";"), EVENTS)
    with pytest.raises(ConfigurationError, match=named):
        rig.having(partitioner="round_robin").prepare()


@gated
def test_rows_told_apart_by_all_their_values_have_the_shard_of_any_column(rig: Rig) -> None:
    rig = by_shard(rig)
    rig.both(*WHOLE.split(";"))
    rig.prepare()
    for number in range(30):
        rig.write(f"INSERT INTO loose VALUES ('tenant {number % 5}', {number % 3})")
    rig.write("UPDATE loose SET v = 9 WHERE tenant = 'tenant 1'", "DELETE FROM loose WHERE tenant = 'tenant 2'")
    rig.write("UPDATE loose SET tenant = 'z' WHERE v = 0")
    rig.run()
    assert rig.comparison().equal
    assert explained(rig).critical == {"several shards": 1}


@gated
def test_an_installed_partitioner_is_used_and_its_release_is_part_of_the_routing(rig: Rig, tmp_path: Path) -> None:
    rig = rig.having(partitioner="by_letter")
    rig.both(ORDERS, EVENTS)
    with pytest.raises(ConfigurationError, match="'by_letter' is not usable"):
        rig.prepare()
    with by_letter_installed(tmp_path):
        rig.prepare()
        tenants_at_work(rig, 3)
        rig.transaction("INSERT INTO events VALUES ('a', 'x')")
        rig.run()
        assert rig.comparison().equal
        assert explained(rig).critical == {"several shards": 3}
        digest = routing_of(rig.config).digest
    newer = tmp_path / "newer"
    newer.mkdir()
    with by_letter_installed(newer, version="2.0"):
        assert routing_of(rig.config).digest != digest
        rig.transaction("INSERT INTO events VALUES ('a', 'y')")
        rig.run()
    assert rig.comparison().equal


@gated
def test_a_shard_column_that_is_dropped_makes_its_table_critical(rig: Rig) -> None:
    from airflow_parallel_apply.pipeline.config import DdlPolicy

    rig = by_shard(rig).having(ddl=DdlPolicy.APPLY)
    rig.both(EVENTS)
    rig.prepare()
    rig.write("INSERT INTO events VALUES ('a', 'x')")
    ddl = "ALTER TABLE events DROP COLUMN tenant"
    rig.transaction(rig.ddl(ddl), ddl)
    rig.write("INSERT INTO events VALUES ('y')")
    rig.write("INSERT INTO events VALUES ('z')")
    rig.run()
    assert rig.comparison().equal
    assert explained(rig).critical["shard unknown"] >= 1
