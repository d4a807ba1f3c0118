"""Bugs that other replicators shipped, and users lost data by: each by what happened, with eight channels.

A recreated slot is in `../run/test_errors.py`, recovery in `tests/crash/test_known_failures_of_recovery.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.errors import TargetError, Unavailable
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget
from airflow_parallel_apply.pipeline.target.postgres import target as target_module
from airflow_parallel_apply.pipeline.target.steps import Step
from airflow_parallel_apply.router.explain import explain
from tests.support.eight_channels import UNIQUE, conflicts, equal_after, make_rig, require_equal
from tests.support.once import Once
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants


@pytest.fixture(
    params=[
        (3, Consistency.CHANNEL),
        pytest.param((1, Consistency.CHANNEL), marks=pytest.mark.long),
        pytest.param((8, Consistency.CHANNEL), marks=GATED),
        pytest.param((8, Consistency.EPOCH, EpochProtocol.LEADER_MERGE), marks=pytest.mark.long),
        pytest.param((8, Consistency.EPOCH, EpochProtocol.TWO_PHASE), marks=pytest.mark.long),
    ],
    ids=["3 lanes", "1 lane", "8 lanes", "8 lanes, in groups", "8 lanes, in two phases"],
)
def rig(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    lanes, consistency, *protocol = request.param
    rig = make_rig(source_dsn, target_dsn, tmp_path, lanes=lanes)
    return rig.having(consistency=consistency, epoch_protocol=(*protocol, EpochProtocol.AUTO)[0])


@pytest.fixture(params=[Consistency.CHANNEL, pytest.param(Consistency.EPOCH, marks=pytest.mark.long)])
def by_one_lane(one_lane: Rig, request: pytest.FixtureRequest) -> Rig:
    """The same, under both consistencies."""
    return one_lane.having(consistency=request.param, epoch_protocol=EpochProtocol.LEADER_MERGE)


def test_rows_deleted_and_inserted_with_the_same_secondary_value_in_parallel(rig: Rig) -> None:
    rig.both(UNIQUE)

    def write() -> None:
        rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 40) i")
        for turn in range(1, 8):
            rig.write(
                f"WITH gone AS (DELETE FROM t RETURNING id, u) INSERT INTO t SELECT id + 1000, u, '{turn}' FROM gone"
            )

    equal_after(rig, write)


@pytest.mark.parametrize("channels", [1, pytest.param(8, marks=pytest.mark.long)])
def test_a_deletion_and_an_insertion_of_one_value_in_one_batch(rig: Rig, channels: int) -> None:
    rig = rig.having(channels=channels, lanes=min(rig.config.lanes, channels), epoch_max_changes=10_000)
    rig.both(UNIQUE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 40) i")
    rig.run()
    rig.write("DELETE FROM t WHERE id <= 20", "INSERT INTO t SELECT i + 100, i, 'b' FROM generate_series(1, 20) i")
    rig.transaction("DELETE FROM t WHERE id > 100", "INSERT INTO t SELECT i + 200, i, 'c' FROM generate_series(1, 9) i")
    rig.run()
    require_equal(rig)


@pytest.mark.long
def test_a_row_deleted_and_inserted_again_in_one_batch_stays_and_one_inserted_and_deleted_goes(rig: Rig) -> None:
    rig = rig.having(epoch_max_changes=10_000)
    rig.both(UNIQUE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 40) i")
    rig.run()
    rig.write("DELETE FROM t WHERE id % 2 = 0", "INSERT INTO t SELECT i, i, 'again' FROM generate_series(2, 40, 2) i")
    rig.write("INSERT INTO t SELECT i, i, 'short' FROM generate_series(50, 90) i", "DELETE FROM t WHERE id >= 50")
    rig.run()
    require_equal(rig)
    assert rig.rows("SELECT v, count(*) FROM t GROUP BY v ORDER BY v") == [("a", 20), ("again", 20)]


@gated
def test_an_insert_that_meets_another_rows_unique_value_never_changes_that_row(by_one_lane: Rig) -> None:
    """An upsert would change the wrong row."""
    by_one_lane.both(UNIQUE)
    by_one_lane.prepare()
    by_one_lane.write("INSERT INTO t VALUES (1, 1, 'mine')")
    by_one_lane.run()
    execute(by_one_lane.target_dsn, "INSERT INTO t VALUES (500, 5, 'somebody else''s')")
    by_one_lane.write("INSERT INTO t SELECT i, i, 'new' FROM generate_series(2, 9) i")
    with pytest.raises(TargetError, match=r"\(u\) already exists"):
        by_one_lane.run()
    assert by_one_lane.rows("SELECT id, u, v FROM t WHERE u = 5") == [(500, 5, "somebody else's")]
    execute(by_one_lane.target_dsn, "DELETE FROM t WHERE id = 500")
    by_one_lane.run()
    require_equal(by_one_lane)


@gated
def test_a_unique_value_handed_over_between_channels_opens_a_merge_point(one_lane: Rig) -> None:
    hand_over(one_lane)
    assert conflicts(one_lane)[("unique", "public.t")] >= 1


@pytest.mark.long
def test_a_unique_value_handed_over_between_channels_is_no_conflict_inside_groups(one_lane: Rig) -> None:
    hand_over(one_lane.having(consistency=Consistency.EPOCH, epoch_protocol=EpochProtocol.LEADER_MERGE))
    assert conflicts(one_lane) == {}


def hand_over(rig: Rig) -> None:
    """Every key takes its neighbour's value; a channel that is ahead meets the row of one that is behind."""
    rig.both(UNIQUE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 'first' FROM generate_series(1, 60) i")
    rig.run()
    for key in range(1, 60):
        rig.transaction(
            f"UPDATE t SET u = NULL WHERE u = {key}", f"UPDATE t SET u = {key}, v = 'next' WHERE u = {key + 1}"
        )
    rig.run()
    require_equal(rig)


def test_unique_values_handed_over_inside_a_transaction(rig: Rig) -> None:
    rig.both(UNIQUE)

    def write() -> None:
        rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 40) i")
        for low in range(1, 40, 2):
            rig.transaction(
                f"UPDATE t SET u = -1 WHERE id = {low}",
                f"UPDATE t SET u = {low} WHERE id = {low + 1}",
                f"UPDATE t SET u = {low + 1}, v = 'swapped' WHERE id = {low}",
            )

    equal_after(rig, write)


@pytest.mark.long
def test_long_chains_of_keys_and_of_unique_values(rig: Rig) -> None:
    """2 becomes 3, then 1 becomes 2, of the key and of a unique value."""
    rig.both(UNIQUE)

    def write() -> None:
        rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 30) i")
        for _ in range(3):
            rig.transaction(*(f"UPDATE t SET u = u + 1 WHERE u = {value}" for value in range(40, 0, -1)))
            rig.transaction(*(f"UPDATE t SET id = id + 1 WHERE id = {value}" for value in range(40, 0, -1)))

    equal_after(rig, write)


@pytest.mark.long
def test_a_key_shift_chain_inside_one_transaction(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")

    def write() -> None:
        rig.write("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
        rig.transaction("UPDATE t SET id = 3 WHERE id = 2", "UPDATE t SET id = 2 WHERE id = 1")
        rig.transaction(
            "UPDATE t SET id = 4 WHERE id = 3", "UPDATE t SET id = 3 WHERE id = 4", "UPDATE t SET v = 'x' WHERE id = 3"
        )
        rig.transaction("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (2, 'new')", "DELETE FROM t WHERE id = 2")

    equal_after(rig, write)
    assert rig.rows("SELECT * FROM t") == [(3, "x")]


@pytest.mark.long
def test_equal_values_in_different_unique_keys_are_no_conflict(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a integer UNIQUE, b integer UNIQUE, c integer, UNIQUE (c, id))")

    def write() -> None:
        for low in range(0, 200, 10):
            rig.write(f"INSERT INTO t SELECT i, i, 500 - i, 1 FROM generate_series({low}, {low + 9}) i")
        rig.write("UPDATE t SET c = c + 1")

    equal_after(rig, write)
    assert conflicts(rig) == {}


@pytest.mark.long
def test_a_child_row_that_arrives_before_its_parent_in_another_channel(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY)",
        "CREATE TABLE child (id integer PRIMARY KEY, parent integer NOT NULL REFERENCES parent)",
    )

    def write() -> None:
        for key in range(60):
            rig.transaction(f"INSERT INTO parent VALUES ({key})", f"INSERT INTO child VALUES ({key}, {key})")
        for key in range(0, 60, 2):
            rig.transaction(f"DELETE FROM child WHERE id = {key}", f"DELETE FROM parent WHERE id = {key}")

    equal_after(rig, write)
    assert conflicts(rig) == {}


ACTIONS = ("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT")


@pytest.mark.parametrize(
    "action", variants(ACTIONS, seldom=["NO ACTION", "RESTRICT", "SET NULL", "SET DEFAULT"], gated=["CASCADE"])
)
def test_foreign_keys_of_every_action_to_a_primary_and_another_unique_key(by_one_lane: Rig, action: str) -> None:
    """The effects of the source's actions arrive as changes, and the target's own actions do nothing."""
    rig = by_one_lane
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY, code integer UNIQUE)",
        "CREATE TABLE child (id integer PRIMARY KEY,"
        f" parent integer DEFAULT 0 REFERENCES parent ON DELETE {action} ON UPDATE {action},"
        f" code integer DEFAULT 0 REFERENCES parent (code) ON DELETE {action} ON UPDATE {action})",
    )
    breaks = action in ("NO ACTION", "RESTRICT")

    def write() -> None:
        rig.write("INSERT INTO parent SELECT i, i FROM generate_series(0, 40) i")
        rig.write("INSERT INTO child SELECT i, i % 40 + 1, i % 40 + 1 FROM generate_series(1, 120) i")
        for key in range(1, 20):
            if breaks:
                rig.write(f"UPDATE child SET parent = 0, code = 0 WHERE parent = {key}")
            rig.write(f"UPDATE parent SET id = id + 100, code = code + 100 WHERE id = {key}")
        for key in range(30, 40):
            if breaks:
                rig.write(f"DELETE FROM child WHERE parent = {key}")
            rig.write(f"DELETE FROM parent WHERE id = {key}")

    equal_after(rig, write)
    assert not {reason for reason, _ in conflicts(rig)} & {"foreign key"}


@pytest.mark.long
def test_transactions_that_lock_rows_in_opposite_orders_make_no_deadlock(rig: Rig) -> None:
    rig.both(*(f"CREATE TABLE t{table} (id integer PRIMARY KEY, n integer UNIQUE)" for table in range(3)))

    def write() -> None:
        rig.write(*(f"INSERT INTO t{table} SELECT i, i FROM generate_series(1, 200) i" for table in range(3)))
        for turn in range(30):
            tables = range(3) if turn % 2 else range(2, -1, -1)
            keys = (turn, turn + 100) if turn % 3 else (turn + 100, turn)
            rig.transaction(*(f"UPDATE t{table} SET n = n + 1000 WHERE id = {key}" for table in tables for key in keys))

    equal_after(rig, write)
    assert rig.rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]
    assert conflicts(rig) == {}


def test_a_table_without_a_key_pins_no_channel_and_is_applied_once_though_its_commits_answer_is_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.both("CREATE TABLE entry (at integer, note text)")
    rig.prepare()
    for turn in range(10):
        rig.write(f"INSERT INTO entry SELECT {turn}, 'same' FROM generate_series(1, 100)")
    rig.capture("first")
    told = explain(
        rig.config.log_url, routing=Routing(channels=8), limits=EpochLimits(max_changes=1000, max_bytes=10**9)
    ).to_json()
    assert told["skew"] < 1.5
    commit = PostgresTarget.commit
    lost = Once()

    def commit_without_an_answer(target: PostgresTarget, unit: Unit, steps: Sequence[Step]) -> None:
        commit(target, unit, steps)
        if lost.now():
            raise Unavailable("the answer was lost", op="commit")

    monkeypatch.setattr(PostgresTarget, "commit", commit_without_an_answer)
    rig.run("first")
    assert lost.happened
    require_equal(rig)
    assert rig.rows("SELECT count(*) FROM entry") == [(1000,)]


@pytest.mark.long
def test_a_transaction_that_is_retried_after_a_deadlock_keeps_its_position(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.both(UNIQUE, "CREATE TABLE entry (at integer)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 200) i")
    rig.write("INSERT INTO entry SELECT generate_series(1, 100)", "UPDATE t SET v = 'b'")
    deadlock = Once()

    def after_a_deadlock(step: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            if deadlock.now():
                raise psycopg.errors.DeadlockDetected("deadlock detected")
            step(*arguments)

        return run

    for name in ("move", "record"):
        monkeypatch.setattr(target_module, name, after_a_deadlock(getattr(target_module, name)))
    closed = rig.run("first")
    assert deadlock.happened
    require_equal(rig)
    assert rig.rows("SELECT DISTINCT seqno FROM parallel_apply.position") == [(closed.stop_seqno,)]
    assert rig.run("next").rows == 0
    rig.write("INSERT INTO entry VALUES (0)")
    assert rig.run("one more").rows == 1
    require_equal(rig)


def test_unchanged_toast_values_are_not_overwritten(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY, big text, v integer)", "ALTER TABLE t ALTER big SET STORAGE EXTERNAL"
    )

    def write() -> None:
        rig.write("INSERT INTO t SELECT i, repeat(md5(i::text), 400), 0 FROM generate_series(1, 20) i")
        rig.write("UPDATE t SET v = 1", "UPDATE t SET big = NULL WHERE id = 3", "UPDATE t SET v = 2 WHERE id < 5")
        rig.transaction("UPDATE t SET big = repeat('x', 9000) WHERE id = 7", "UPDATE t SET v = 9 WHERE id = 7")
        rig.write("UPDATE t SET id = id + 100 WHERE id IN (1, 7, 20)")

    equal_after(rig, write)


@gated
def test_a_row_that_is_there_already_is_found_though_the_targets_key_is_deferrable(one_lane: Rig) -> None:
    one_lane.write("CREATE TABLE d (id integer PRIMARY KEY, v text)")
    execute(one_lane.target_dsn, "CREATE TABLE d (id integer, v text, CONSTRAINT late PRIMARY KEY (id) DEFERRABLE)")
    with pytest.raises(TargetError, match="no unique index over exactly the source's key") as refused:
        one_lane.prepare()
    assert "a deferrable constraint, which is there, is not checked at once" in str(refused.value)
    execute(one_lane.target_dsn, "CREATE UNIQUE INDEX at_once ON d (id)")
    one_lane.prepare()
    execute(one_lane.target_dsn, "INSERT INTO d VALUES (1, 'of somebody else')")
    one_lane.write("INSERT INTO d VALUES (1, 'ours')")
    with pytest.raises(TargetError, match="at_once"):
        one_lane.run()
    execute(one_lane.target_dsn, "DELETE FROM d", "DROP INDEX at_once")
    with pytest.raises(TargetError, match="a deferrable constraint"):
        one_lane.run()
    execute(one_lane.target_dsn, "CREATE UNIQUE INDEX at_once ON d (id)")
    one_lane.run()
    assert one_lane.comparison().equal
