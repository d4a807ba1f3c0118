"""Channels that are in each other's way: handed-over unique values, exclusions, foreign keys, triggers, deadlocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.partition.key import buckets
from airflow_parallel_apply.pipeline.target.postgres import target as target_module
from tests.support.eight_channels import UNIQUE, conflicts, equal_after, make_rig, require_equal
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated


@pytest.fixture(
    params=[3, pytest.param(1, marks=pytest.mark.long), pytest.param(8, marks=GATED)],
    ids=["3 lanes", "1 lane", "8 lanes"],
)
def rig(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    return make_rig(source_dsn, target_dsn, tmp_path, lanes=request.param)


@pytest.mark.long
def test_a_violation_that_no_channel_made_ends_with_one_error_and_no_position_moved_past_it(rig: Rig) -> None:
    rig.both(UNIQUE)
    rig.prepare()
    execute(rig.target_dsn, "INSERT INTO t VALUES (500, 5, 'somebody else''s')")
    for key in range(1, 10):
        rig.write(f"INSERT INTO t VALUES ({key}, {key}, 'new')")
    with pytest.raises(TargetError, match=r"\(u\) already exists.*table public\.t"):
        rig.run()
    assert rig.rows("SELECT min(seqno) FROM parallel_apply.position") == [(-1,)]
    assert rig.rows("SELECT id FROM t WHERE u = 5") == [(500,)]
    execute(rig.target_dsn, "DELETE FROM t WHERE id = 500")
    rig.run()
    require_equal(rig)


@pytest.mark.long
def test_exclusion_constraints(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY, during int4range, v text, EXCLUDE USING gist (during WITH &&))",
    )

    def write() -> None:
        rig.write("INSERT INTO t SELECT i, int4range(i * 10, i * 10 + 10), 'a' FROM generate_series(1, 30) i")
        for turn in range(6):
            rig.transaction(
                "DELETE FROM t WHERE id = 1",
                *(
                    f"UPDATE t SET v = '{turn}', during = int4range(lower(during) - 10, upper(during) - 10)"
                    f" WHERE id = {key}"
                    for key in range(2, 31)
                ),
                *(f"UPDATE t SET id = id - 1 WHERE id = {key}" for key in range(2, 31)),
                "INSERT INTO t VALUES (30, int4range(300, 310), 'again')",
            )

    equal_after(rig, write)


@pytest.mark.long
def test_partial_and_expression_indexes_and_generated_columns(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY, name text, live boolean, n integer,"
        " twice integer GENERATED ALWAYS AS (n * 2) STORED UNIQUE)",
        "CREATE UNIQUE INDEX ON t (lower(name)) WHERE live",
    )

    def write() -> None:
        rig.write(
            "INSERT INTO t SELECT i, CASE WHEN i % 2 = 0 THEN 'Name' ELSE 'nAME' END || i / 2, i % 2 = 0, i"
            " FROM generate_series(2, 41) i"
        )
        for _ in range(5):
            rig.transaction(
                "UPDATE t SET live = false WHERE id % 2 = 0",
                "UPDATE t SET live = true WHERE id % 2 = 1",
                *(f"UPDATE t SET n = 1000 + n WHERE id = {key}" for key in range(2, 42)),
                *(f"UPDATE t SET n = n - 1001 WHERE id = {key}" for key in range(2, 42)),
            )
            rig.transaction("UPDATE t SET live = false WHERE id % 2 = 1", "UPDATE t SET live = true WHERE id % 2 = 0")

    equal_after(rig, write)


@pytest.mark.long
def test_columns_that_were_not_sent_or_are_the_targets_own_survive_a_hand_over(rig: Rig) -> None:
    rig.write(
        "CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    )
    execute(
        rig.target_dsn,
        "CREATE TABLE t (own text DEFAULT 'own', id integer PRIMARY KEY, u integer UNIQUE, big text, loaded bigserial)",
    )
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, repeat(md5(i::text), 300) FROM generate_series(1, 16) i")
    rig.run()
    execute(rig.target_dsn, "UPDATE t SET own = 'kept ' || id")
    before = rig.rows("SELECT id, own, loaded FROM t ORDER BY id")
    for _ in range(3):
        rig.transaction(
            "UPDATE t SET u = u + 1000", *(f"UPDATE t SET u = {key % 16 + 1} WHERE id = {key}" for key in range(1, 17))
        )
        rig.transaction(
            "UPDATE t SET u = u + 1000", *(f"UPDATE t SET u = {18 - key} WHERE id = {key}" for key in range(2, 17))
        )
    rig.run()
    assert rig.rows("SELECT id, own, loaded FROM t ORDER BY id") == before
    both = "SELECT id, u, md5(big) FROM t ORDER BY id"
    assert rig.rows(both) == rig.rows(both, side="source")


@pytest.mark.long
def test_deferrable_constraints(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE DEFERRABLE INITIALLY DEFERRED,"
        " w integer UNIQUE DEFERRABLE)",
        "CREATE TABLE c (id integer PRIMARY KEY, t integer REFERENCES t DEFERRABLE INITIALLY DEFERRED)",
    )

    def write() -> None:
        rig.transaction(
            "INSERT INTO c SELECT i, i FROM generate_series(1, 40) i",
            "INSERT INTO t SELECT i, i, i FROM generate_series(1, 40) i",
        )
        for _ in range(4):
            rig.write("UPDATE t SET u = u + 1, w = 41 - w")
            rig.transaction(
                "UPDATE t SET u = 1 WHERE u = 5", "UPDATE t SET u = 5 WHERE u < 4", "UPDATE t SET u = id + 100"
            )

    equal_after(rig, write)


@pytest.mark.long
def test_foreign_keys_to_the_same_table_and_in_a_circle(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE node (id integer PRIMARY KEY, up integer REFERENCES node ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE a (id integer PRIMARY KEY, b integer)",
        "CREATE TABLE b (id integer PRIMARY KEY, a integer REFERENCES a ON DELETE CASCADE ON UPDATE CASCADE)",
        "ALTER TABLE a ADD FOREIGN KEY (b) REFERENCES b ON DELETE SET NULL ON UPDATE CASCADE",
    )

    def write() -> None:
        rig.write("INSERT INTO node SELECT i, nullif(i / 2, 0) FROM generate_series(1, 80) i")
        rig.write("UPDATE node SET id = id + 1000 WHERE id IN (1, 4, 9)", "DELETE FROM node WHERE id IN (3, 1009, 20)")
        rig.transaction(
            "INSERT INTO a SELECT i FROM generate_series(1, 40) i",
            "INSERT INTO b SELECT i, i FROM generate_series(1, 40) i",
            "UPDATE a SET b = id",
        )
        rig.write("UPDATE a SET id = id + 100 WHERE id < 10", "UPDATE b SET id = id + 100 WHERE id % 3 = 0")
        rig.write("DELETE FROM a WHERE id > 105", "DELETE FROM b WHERE id % 7 = 0")

    equal_after(rig, write)


@pytest.mark.long
def test_ordinary_triggers_and_rules_stay_silent_and_those_for_replicas_fire(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE)")
    execute(
        rig.target_dsn,
        "CREATE SCHEMA side",
        "CREATE TABLE side.seen (what text, id integer)",
        "CREATE FUNCTION side.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO side.seen VALUES (TG_NAME || ' ' || TG_OP, coalesce(NEW.id, OLD.id)); RETURN NULL; END $$",
        "CREATE TRIGGER ordinary AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION side.see()",
        "CREATE TRIGGER always AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION side.see()",
        "CREATE TRIGGER replica AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION side.see()",
        "ALTER TABLE t ENABLE ALWAYS TRIGGER always",
        "ALTER TABLE t ENABLE REPLICA TRIGGER replica",
        "CREATE RULE nothing AS ON DELETE TO t DO INSTEAD NOTHING",
    )
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i FROM generate_series(1, 9) i")
    rig.run()
    rig.write("UPDATE t SET u = -u WHERE id < 4")
    rig.run()
    rig.write("DELETE FROM t WHERE id > 7")
    rig.run()
    require_equal(rig)
    assert rig.rows("SELECT what, count(*) FROM side.seen GROUP BY what ORDER BY what") == [
        (f"{name} {operation}", count)
        for name in ("always", "replica")
        for operation, count in (("DELETE", 2), ("INSERT", 9), ("UPDATE", 3))
    ]


def test_a_hand_over_where_triggers_fire_for_replicas_too(one_lane: Rig) -> None:
    rig = one_lane
    rig.both(UNIQUE)
    execute(
        rig.target_dsn,
        "CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER always BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION same()",
        "ALTER TABLE t ENABLE ALWAYS TRIGGER always",
    )

    def write() -> None:
        rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 40) i")
        for turn in range(1, 5):
            rig.transaction("UPDATE t SET u = u + 1000", f"UPDATE t SET u = (id + {turn}) % 40")

    equal_after(rig, write)


@gated
def test_a_role_without_the_right_to_be_a_replica_hands_values_over_too(one_lane: Rig) -> None:
    one_lane.both(UNIQUE, "CREATE TABLE d (id integer PRIMARY KEY, u integer UNIQUE DEFERRABLE, w integer UNIQUE)")
    with psycopg.connect(one_lane.target_dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE plain LOGIN")
        connection.execute("GRANT ALL ON SCHEMA public TO plain; GRANT ALL ON t, d TO plain")
        connection.execute(f"GRANT CREATE ON DATABASE {connection.info.dbname} TO plain")
    rig = replace(one_lane, target_dsn=psycopg.conninfo.make_conninfo(one_lane.target_dsn, user="plain"))
    try:
        rig.prepare()
        rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 30) i")
        rig.write("INSERT INTO d SELECT i, i, i FROM generate_series(1, 30) i")
        rig.run()
        for turn in range(1, 4):
            rig.transaction("UPDATE t SET u = u + 1000", f"UPDATE t SET u = (id + {turn}) % 30")
            rig.transaction("UPDATE d SET u = 31 - u, w = w + 1000", f"UPDATE d SET w = (id + {turn}) % 30")
        rig.run()
        require_equal(rig)
        assert {reason for reason, _ in conflicts(rig)} == {"unique"}
    finally:
        execute(one_lane.target_dsn, "DROP OWNED BY plain CASCADE", "DROP ROLE plain")


@gated
def test_the_status_tells_conflicts_by_reason_and_table(one_lane: Rig) -> None:
    rig = one_lane
    rig.both(UNIQUE, "CREATE TABLE x (id integer PRIMARY KEY, r int4range, EXCLUDE USING gist (r WITH &&))")

    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 30) i")
    rig.write("INSERT INTO x SELECT i, int4range(i, i + 1) FROM generate_series(1, 30) i")
    rig.run()
    rig.transaction("UPDATE t SET u = u + 1000", "UPDATE t SET u = (id + 1) % 30")
    rig.run()
    rig.transaction(
        "UPDATE x SET r = int4range(-id, -id + 1)", "UPDATE x SET r = int4range((id + 1) % 30, (id + 1) % 30 + 1)"
    )
    rig.run()
    require_equal(rig)
    found = conflicts(rig)
    assert set(found) == {("unique", "public.t"), ("exclusion", "public.x")}
    with psycopg.connect(rig.target_dsn) as connection:
        query = "SELECT sum(count) FROM parallel_apply.rework WHERE kind = 'merge point'"
        counted = connection.execute(query).fetchone()
    assert counted == (sum(found.values()),)


@gated
def test_a_unique_index_of_one_partition_alone_while_the_channels_are_apart(one_lane: Rig) -> None:
    one_lane.both(
        "CREATE TABLE t (id integer PRIMARY KEY, u integer, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE t_part PARTITION OF t DEFAULT",
        "CREATE UNIQUE INDEX ON t_part (u)",
    )
    one_lane.prepare()
    one_lane.write("INSERT INTO t SELECT i, i FROM generate_series(1, 60) i")
    one_lane.run()
    # The first channel has nothing to do with what the others hand around, and so runs ahead.
    first = [key for key in range(1, 61) if int(buckets("public.t", pa.array([str(key)]))[0]) < BUCKET_COUNT // 8]
    others = [key for key in range(1, 61) if key not in first]
    one_lane.write(*(f"UPDATE t SET v = '{number}' WHERE id = ANY (ARRAY{first})" for number in range(9)))
    one_lane.transaction(
        "UPDATE t SET u = u + 1000",
        *(
            f"UPDATE t SET u = {value} WHERE id = {key}"
            for key, value in zip(others, [*others[1:], others[0]], strict=True)
        ),
        f"UPDATE t SET u = u - 1000 WHERE id = ANY (ARRAY{first})",
    )
    one_lane.write(*(f"UPDATE t SET v = '{number}' WHERE id = ANY (ARRAY{first})" for number in range(9)))
    one_lane.run()
    require_equal(one_lane)
    assert conflicts(one_lane) == {("unique", "public.t_part"): 1}


@gated
def test_a_deadlock_that_comes_again_opens_a_merge_point(one_lane: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    one_lane.both(UNIQUE)
    tried: list[int] = []
    move = target_module.move

    def move_after_deadlocks(connection: Any, session: Any, unit: Unit) -> None:
        if unit.channel == 3 and unit.row_count:
            tried.append(unit.last_seqno)
            raise psycopg.errors.DeadlockDetected("deadlock detected")
        move(connection, session, unit)

    monkeypatch.setattr(target_module, "move", move_after_deadlocks)
    # Insertions alone would be the stage's own transaction.
    insert, update = "INSERT INTO t SELECT i, i FROM generate_series(1, 60) i", "UPDATE t SET v = v || 0"
    equal_after(one_lane, lambda: one_lane.write(insert, update))
    assert len(tried) == 2
    assert [reason for reason, _ in conflicts(one_lane)] == ["deadlock"]
