"""Tables without a key under REPLICA IDENTITY FULL: rows are told apart by all their values."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated


@pytest.fixture(params=[pytest.param(1, marks=GATED), 8], ids=["1 channel", "8 channels"])
def rig(request: pytest.FixtureRequest, source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=request.param,
        lanes=2,
        tables=TablePatterns(include=("*.*",)),
        epoch_max_changes=50,
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


def bag(rig: Rig, columns: str = "a integer, b text") -> None:
    rig.both(f"CREATE TABLE bag ({columns})", "ALTER TABLE bag REPLICA IDENTITY FULL")
    rig.prepare()


@gated
def test_of_equal_rows_exactly_one_changes(rig: Rig) -> None:
    bag(rig)
    rig.write("INSERT INTO bag SELECT 1, NULL FROM generate_series(1, 5)", "INSERT INTO bag VALUES (2, '')")
    rig.run()
    rig.write(
        "UPDATE bag SET b = 'changed' WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1)",
        "DELETE FROM bag WHERE ctid = (SELECT max(ctid) FROM bag WHERE a = 1 AND b IS NULL)",
    )
    rig.run()
    assert rig.rows("SELECT a, b, count(*) FROM bag GROUP BY 1, 2 ORDER BY 1, 2") == [
        (1, "changed", 1),
        (1, None, 3),
        (2, "", 1),
    ]
    assert rig.comparison().equal


@gated
def test_rows_from_before_a_table_had_a_key_are_still_told_apart_by_all_their_values(rig: Rig) -> None:
    bag(rig, "a integer NOT NULL, b text")
    rig.write("INSERT INTO bag SELECT i, 'before' FROM generate_series(1, 9) i")
    rig.run()
    rig.write("UPDATE bag SET b = 'whole' WHERE a < 5", "DELETE FROM bag WHERE a = 9")
    rig.both("ALTER TABLE bag ADD PRIMARY KEY (a)", "ALTER TABLE bag REPLICA IDENTITY DEFAULT")
    rig.write("UPDATE bag SET b = 'by its key' WHERE a > 6", "INSERT INTO bag VALUES (10, 'new')")
    rig.run()
    assert rig.rows("SELECT b, count(*) FROM bag GROUP BY 1 ORDER BY 1") == [
        ("before", 2),
        ("by its key", 2),
        ("new", 1),
        ("whole", 4),
    ]
    assert rig.comparison().equal


@gated
def test_rows_that_only_their_texts_tell_apart_are_apart(rig: Rig) -> None:
    bag(rig, "n numeric, i interval, j json, p point, c circle")
    rig.write(
        "INSERT INTO bag VALUES (1.0, '1 day', '{}', '(1,2)', '<(0,0),1>')",
        "INSERT INTO bag VALUES (1.00, '24:00', '{ }', '(1,2)', '<(5,5),1>')",
    )
    rig.run()
    rig.write("DELETE FROM bag WHERE n::text = '1.00'", "UPDATE bag SET p = NULL")
    rig.run()
    assert rig.rows("SELECT n::text, i::text, j::text, p::text FROM bag") == [("1.0", "1 day", "{}", None)]


@gated
def test_a_row_that_is_not_there_is_named_and_no_position_moves(rig: Rig) -> None:
    bag(rig)
    rig.write("INSERT INTO bag VALUES (1, 'one'), (1, 'one'), (2, 'two')")
    rig.run()
    execute(rig.target_dsn, "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1)")
    rig.write("DELETE FROM bag WHERE a = 1", "UPDATE bag SET b = 'x' WHERE a = 2")
    with pytest.raises(FatalError, match=r"1 rows to change or delete .* public\.bag.*Values: .*1'?, ?'?one"):
        rig.having(error_values=True).run()
    assert rig.rows("SELECT b FROM bag ORDER BY 1") == [("one",), ("two",)]
    execute(rig.target_dsn, "INSERT INTO bag VALUES (1, 'one')")
    rig.run()
    assert rig.comparison().equal


@gated
def test_changes_of_changes_inside_a_unit_and_around_a_truncate(rig: Rig) -> None:
    bag(rig)
    rig.transaction(
        "INSERT INTO bag SELECT i % 3, 'v' FROM generate_series(1, 30) i",
        "UPDATE bag SET a = a + 1",
        "UPDATE bag SET b = b || a",
        "DELETE FROM bag WHERE a = 1",
    )
    rig.transaction(
        "TRUNCATE bag", "INSERT INTO bag VALUES (7, 'x'), (7, 'x')", "UPDATE bag SET a = 8", "DELETE FROM bag"
    )
    rig.transaction(
        "INSERT INTO bag SELECT i % 5, repeat('y', 3000) FROM generate_series(1, 900) i", "TRUNCATE bag",
        "INSERT INTO bag SELECT i % 5, repeat('z', 3000) FROM generate_series(1, 900) i",
        "UPDATE bag SET a = 9 WHERE a = 1",
    )  # fmt: skip
    rig.run()
    assert rig.comparison().equal


@gated
def test_one_megabyte_values_arrive_whole_though_they_did_not_change(rig: Rig) -> None:
    bag(rig)
    rig.both("ALTER TABLE bag ALTER b SET STORAGE EXTERNAL")
    rig.write("INSERT INTO bag SELECT i, repeat('x', 1000000) FROM generate_series(1, 3) i")
    rig.write("UPDATE bag SET a = -1 WHERE a = 1", "UPDATE bag SET b = NULL WHERE a = 2")
    rig.run()
    assert rig.comparison().equal


@gated
def test_stored_generated_columns_belong_to_the_image(rig: Rig) -> None:
    bag(rig, "a integer, b text, twice integer GENERATED ALWAYS AS (a * 2) STORED")
    rig.write(
        "INSERT INTO bag VALUES (1, 'x'), (1, 'x')", "UPDATE bag SET a = 2 WHERE ctid = (SELECT min(ctid) FROM bag)"
    )
    rig.run()
    assert rig.rows("SELECT a, twice FROM bag ORDER BY a") == [(1, 2), (2, 4)]


@gated
@pytest.mark.parametrize("ddl", [DdlPolicy.REFUSE, pytest.param(DdlPolicy.APPLY, marks=pytest.mark.long)])
def test_a_new_table_that_needs_generated_columns_published_stops_no_other(rig: Rig, ddl: DdlPolicy) -> None:
    rig = rig.having(ddl=ddl)
    rig.both("CREATE TABLE a (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED, v text)")
    rig.prepare()
    rig.write("INSERT INTO a VALUES (1)")
    rig.run()
    rig.both(
        "CREATE TABLE b (id int, g int GENERATED ALWAYS AS (id * 2) STORED)", "ALTER TABLE b REPLICA IDENTITY FULL"
    )
    rig.write("INSERT INTO a VALUES (2)")
    rig.run()
    rig.write("INSERT INTO a VALUES (3)", "INSERT INTO b VALUES (3)", "UPDATE a SET v = 'x'", "UPDATE b SET id = 4")
    rig.run()
    assert rig.comparison().equal, rig.comparison()
    rig.write("UPDATE a SET v = 'y'", "UPDATE b SET id = 5")
    rig.run()
    assert rig.comparison().equal, rig.comparison()


def test_a_table_whose_updates_publishing_would_forbid_is_refused_by_name(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE v (a integer, b integer GENERATED ALWAYS AS (a) VIRTUAL)", "ALTER TABLE v REPLICA IDENTITY FULL"
    )
    with pytest.raises(FatalError, match=r"public\.v has .*virtual generated columns"):
        rig.prepare()


@gated
def test_a_partition_that_does_not_send_whole_rows_is_refused(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE t (a integer) PARTITION BY LIST (a)",
        "CREATE TABLE t_1 PARTITION OF t DEFAULT",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    with pytest.raises(FatalError, match=r"REPLICA IDENTITY FULL.*public\.t\b"):
        rig.prepare()
    rig.write("ALTER TABLE t_1 REPLICA IDENTITY FULL")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1), (1), (2)", "UPDATE t SET a = 5 WHERE a = 2")
    with psycopg.connect(rig.source_dsn) as connection:
        connection.execute("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t)")
    rig.run()
    assert rig.rows("SELECT a FROM t ORDER BY 1") == [(1,), (5,)]


@gated
def test_rows_of_before_a_key_was_made_are_still_told_apart_by_all_their_values(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    bag(rig)
    rig.write(
        "INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (2, 'y')",
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1)",
    )
    key = "ALTER TABLE bag ADD PRIMARY KEY (a)"
    rig.transaction(key, rig.ddl(key))
    rig.write("UPDATE bag SET b = 'z' WHERE a = 2", "UPDATE bag SET a = 3 WHERE a = 1")
    rig.run()
    assert rig.rows("SELECT a, b FROM bag ORDER BY a") == [(2, "z"), (3, "x")]
    assert rig.comparison().equal


@gated
def test_columns_with_the_names_of_stagings_own(rig: Rig) -> None:
    names = ", ".join(f'"pa:{name}" text' for name in ("operation", "operation:", "unsent", "text:1", "text:2"))
    rig.both(
        f"CREATE TABLE keyed (id integer PRIMARY KEY, big text, {names})",
        "ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL",
        'CREATE TABLE named (id integer, "pa:operation" text, "pa:inserted" text, "pa:image" text, "pa:net" text,'
        ' "pa:number" text)',
        "ALTER TABLE named REPLICA IDENTITY FULL",
    )
    execute(rig.target_dsn, 'ALTER TABLE keyed ALTER "pa:unsent" TYPE varchar(9)')
    rig.prepare()
    rig.write(
        "INSERT INTO keyed SELECT n, repeat('b', 9000), 'o', 'p', 'u', 't', n FROM generate_series(1, 9) n",
        "INSERT INTO named SELECT n % 3, 'o', 'i', 'm', 'n', 'b' FROM generate_series(1, 9) n",
    )
    rig.run()
    rig.write(
        "UPDATE keyed SET \"pa:unsent\" = 'v' WHERE id < 4",
        "DELETE FROM keyed WHERE id > 7",
        "UPDATE named SET \"pa:net\" = 'm' WHERE id = 1",
        "DELETE FROM named WHERE ctid IN (SELECT ctid FROM named WHERE id = 2 LIMIT 1)",
    )
    rig.run()
    assert rig.comparison().equal
