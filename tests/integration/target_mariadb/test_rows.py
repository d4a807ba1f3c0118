"""Rows of PostgreSQL in MariaDB: whatever happens to them at the source, MariaDB's own client reads the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, Start
from airflow_parallel_apply.pipeline.errors import ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.router.plan import plan
from tests.support.in_memory.history import bucket_of
from tests.support.mariadb_rig import MariaDbRig
from tests.support.variants import GATED, gated

KEYED = ["CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE, v text)"]
KEYED_THERE = ["CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v longtext)"]

REFERENCE = "FOREIGN KEY (t) REFERENCES t (id)"


@gated
def test_insertions_updates_deletions_and_key_changes_arrive(maria: MariaDbRig) -> None:
    maria.make(KEYED, KEYED_THERE)
    maria.rig.prepare()
    maria.rig.write(
        "INSERT INTO t SELECT i, i, 'v' || i FROM generate_series(1, 300) i",
        "UPDATE t SET v = v || ' \t\n\\ é 漢 🙂' WHERE id % 3 = 0",
        "UPDATE t SET id = id + 1000 WHERE id % 5 = 0",
        "DELETE FROM t WHERE id % 7 = 0",
        "UPDATE t SET v = NULL WHERE id % 11 = 0",
    )
    maria.rig.run()
    maria.require_equal("SELECT id, u, v FROM t")
    maria.rig.write("DELETE FROM t WHERE id < 50", "INSERT INTO t SELECT i, -i, '' FROM generate_series(1, 20) i")
    maria.rig.run()
    maria.require_equal("SELECT id, u, v FROM t")


@gated
@pytest.mark.parametrize("consistency", [Consistency.CHANNEL, pytest.param(Consistency.EPOCH, marks=GATED)])
def test_unique_values_go_from_row_to_row_and_none_is_overwritten(maria: MariaDbRig, consistency: Consistency) -> None:
    rig = maria.rig.having(consistency=consistency)
    maria.make(KEYED, KEYED_THERE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 40) i")
    rig.run()
    for turn in range(1, 5):
        rig.write(f"WITH gone AS (DELETE FROM t RETURNING id, u) INSERT INTO t SELECT id + 1000, u, '{turn}' FROM gone")
    rig.write(
        "UPDATE t SET u = u + 100 WHERE u > 20",
        "UPDATE t SET u = u - 1 WHERE u < 10 AND u > 1 AND false",
        "UPDATE t SET u = NULL WHERE u = 1",
        "UPDATE t SET u = 1 WHERE u = 2",
        "UPDATE t SET u = 2, v = 'shifted' WHERE u = 3",
    )
    rig.transaction(
        "UPDATE t SET u = -1 WHERE u = 5", "UPDATE t SET u = 5 WHERE u = 6", "UPDATE t SET u = 6 WHERE u = -1"
    )
    rig.run()
    maria.require_equal("SELECT id, u, v FROM t")


@gated
def test_a_swap_goes_on_where_rows_have_columns_of_the_target_and_others_are_done(
    maria: MariaDbRig,
) -> None:
    maria.make(KEYED, ["CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v longtext, own int DEFAULT 7)"])
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t SELECT i, i FROM generate_series(1, 60) i")
    maria.rig.run()
    last = [key for key in range(1, 61) if bucket_of(key) * 4 // BUCKET_COUNT == 3]
    swap = (last[0], -1), (last[1], last[0]), (last[0], last[1])
    maria.rig.transaction(*(f"UPDATE t SET u = {u} WHERE id = {key}" for key, u in swap), "UPDATE t SET v = 'a'")
    maria.rig.run(lanes=1)
    maria.require_equal("SELECT id, u, v FROM t")


@gated
def test_rows_that_are_put_back_keep_the_rows_that_refer_to_them(maria: MariaDbRig) -> None:
    plain, child = (
        "CREATE TABLE t (id {int} PRIMARY KEY, v {text})",
        "CREATE TABLE child (id {int} PRIMARY KEY, t {int}",
    )
    maria.make(
        [plain.format(int="integer", text="text"), child.format(int="integer") + ")"],
        [
            plain.format(int="int", text="longtext"),
            child.format(int="int") + f", {REFERENCE} ON DELETE CASCADE ON UPDATE CASCADE)",
        ],
    )
    maria.rig.prepare()
    maria.rig.write(
        "INSERT INTO t SELECT i, 'a' FROM generate_series(1, 40) i", "INSERT INTO child SELECT id, id FROM t"
    )
    maria.rig.run()
    maria.rig.write("UPDATE t SET v = 'b' || id WHERE id > 4", "UPDATE child SET t = 1 WHERE id = 2")
    maria.rig.run()
    maria.require_equal("SELECT id, v FROM t")
    maria.require_equal("SELECT id, t FROM child")
    maria.server.run("DELETE FROM t WHERE id = 7", database="test")
    maria.rig.write("UPDATE t SET v = 'c' WHERE id IN (6, 7)")
    with pytest.raises(ParallelApplyError, match=r"1 rows to update are not in the target, first: id=7"):
        maria.rig.having(lanes=1).run()
    maria.require_equal("SELECT id, v FROM t WHERE id < 6")


@gated
def test_a_truncate_empties_tables_and_what_follows_it_stays(maria: MariaDbRig) -> None:
    maria.make(
        [*KEYED, "CREATE TABLE child (id integer PRIMARY KEY, t integer REFERENCES t ON DELETE CASCADE)"],
        [
            *KEYED_THERE,
            "CREATE TABLE child (id int PRIMARY KEY, t int, FOREIGN KEY (t) REFERENCES t (id) ON DELETE CASCADE)",
        ],
    )
    maria.rig.prepare()
    maria.rig.write(
        "INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 40) i", "INSERT INTO child SELECT id, id FROM t"
    )
    maria.rig.run()
    maria.rig.write("DELETE FROM t WHERE id < 10", "INSERT INTO child VALUES (99, 40)")
    maria.rig.run()
    maria.require_equal("SELECT id, t FROM child")
    maria.rig.write("TRUNCATE t CASCADE", "INSERT INTO t VALUES (7, 7, 'after')")
    maria.rig.run()
    maria.require_equal("SELECT id, u, v FROM t")
    maria.require_equal("SELECT id, t FROM child")


@gated
def test_values_that_were_not_sent_stay(maria: MariaDbRig) -> None:
    maria.make(
        ["CREATE TABLE t (id integer PRIMARY KEY, big text, u integer UNIQUE, n integer)",
         "ALTER TABLE t ALTER big SET STORAGE EXTERNAL"],
        ["CREATE TABLE t (id int PRIMARY KEY, big longtext, u int UNIQUE, n int)"],
    )  # fmt: skip
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t SELECT i, repeat(md5(i::text), 300), i, 0 FROM generate_series(1, 60) i")
    maria.rig.run()
    maria.rig.write(
        "UPDATE t SET n = n + 1 WHERE id % 2 = 0",
        "UPDATE t SET u = u + 1000 WHERE id % 3 = 0",
        "UPDATE t SET big = 'new' WHERE id % 5 = 0",
        "UPDATE t SET id = id + 500 WHERE id % 7 = 0",
    )
    maria.rig.run()
    maria.require_equal("SELECT id, md5(big), u, n FROM t")


@gated
def test_keys_that_change_by_the_blanks_that_end_them_get_the_source_s_text(maria: MariaDbRig) -> None:
    maria.make(
        [
            "CREATE DOMAIN code AS bpchar",
            "CREATE TABLE t (k bpchar PRIMARY KEY, v integer)",
            "CREATE TABLE pair (a integer, k code, PRIMARY KEY (a, k))",
        ],
        [],
    )
    assert maria.propose() == []
    maria.make([], ["ALTER TABLE t ADD INDEX (v)", "ALTER TABLE pair ADD INDEX (k)"])
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t VALUES ('a', 1), ('b ', 2)", "INSERT INTO pair VALUES (1, 'a'), (2, 'b ')")
    maria.rig.run()
    maria.rig.write("UPDATE t SET k = 'a ', v = 3 WHERE k = 'a'", "UPDATE t SET k = 'b' WHERE k = 'b'")
    maria.rig.write("UPDATE pair SET k = 'a ' WHERE k = 'a'", "UPDATE pair SET k = 'b' WHERE k = 'b'")
    maria.rig.run()
    for query in ("SELECT {}, v FROM t", "SELECT {}, a FROM pair"):
        there, here = query.format("HEX(k)"), query.format("upper(encode(bpcharsend(k), 'hex'))")
        maria.require_equal(there, at_source=here)


@gated
def test_a_key_of_timestamps_stays_where_the_server_changes_those_without_a_default(maria: MariaDbRig) -> None:
    maria.make(
        ["CREATE TABLE t (at timestamptz PRIMARY KEY, u integer UNIQUE)"],
        ["CREATE TABLE t (at timestamp(6) NOT NULL DEFAULT '2001-01-01' PRIMARY KEY, u int UNIQUE)"],
    )
    maria.server.run("SET GLOBAL explicit_defaults_for_timestamp = OFF")
    try:
        maria.rig.prepare()
        maria.rig.write("INSERT INTO t VALUES ('2020-01-01+00', 1), ('2021-01-01+00', 2)")
        maria.rig.run()
        maria.rig.write("UPDATE t SET u = u + 5")
        maria.rig.run()
    finally:
        maria.server.run("SET GLOBAL explicit_defaults_for_timestamp = ON")
    maria.require_equal("SELECT u, YEAR(at) FROM t", at_source="SELECT u, extract(year FROM at) FROM t")


@gated
def test_rows_without_a_key_are_counted(maria: MariaDbRig) -> None:
    maria.make(
        ["CREATE TABLE bag (a integer, b text, f double precision)", "ALTER TABLE bag REPLICA IDENTITY FULL"],
        ["CREATE TABLE bag (a int, b longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, f double)"],
    )
    maria.rig.prepare()
    maria.rig.write(
        "INSERT INTO bag SELECT i % 5, CASE i % 3 WHEN 0 THEN 'x' WHEN 1 THEN 'X' END, 0.1 * (i % 2)"
        " FROM generate_series(1, 90) i",
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 1 LIMIT 3)",
    )
    maria.rig.run()
    maria.require_equal("SELECT a, b, f FROM bag", at_source="SELECT a, b, f::text FROM bag")
    maria.rig.write("UPDATE bag SET b = 'X' WHERE b = 'x' AND a = 2", "DELETE FROM bag WHERE b = 'X' AND a = 3")
    maria.rig.run()
    maria.require_equal("SELECT a, b, f FROM bag", at_source="SELECT a, b, f::text FROM bag")


@gated
def test_rows_without_a_key_come_one_by_one_where_a_unique_index_is_in_the_way(maria: MariaDbRig) -> None:
    maria.make(
        ["CREATE TABLE bag (a integer, b text)", "ALTER TABLE bag REPLICA IDENTITY FULL"],
        ["CREATE TABLE bag (a int UNIQUE, b longtext CHARACTER SET utf8mb4)"],
    )
    maria.rig.prepare()
    maria.rig.write("INSERT INTO bag VALUES (1, 'a')", "DELETE FROM bag", "INSERT INTO bag VALUES (1, 'c')")
    maria.rig.run()
    maria.require_equal("SELECT a, b FROM bag")
    maria.rig.write("INSERT INTO bag VALUES (1, 'd')")
    with pytest.raises(TargetError, match="drop the table's unique indexes at the target"):
        maria.rig.run()
    maria.server.run("ALTER TABLE bag DROP INDEX a", database="test")
    maria.rig.run()
    maria.require_equal("SELECT a, b FROM bag")


@gated
def test_rows_lie_in_databases_named_as_the_sources_schemas(maria: MariaDbRig) -> None:
    names: Sequence[str] = ['CREATE SCHEMA "Odd Schema"']
    maria.make(
        [*names, 'CREATE TABLE "Odd Schema"."Order ""x"" %s" ("Id" integer PRIMARY KEY, "select" text, "Ünï%" text)'],
        ["CREATE DATABASE `Odd Schema`",
         'CREATE TABLE `Odd Schema`.`Order "x" %s` (`Id` int PRIMARY KEY, `select` text, `Ünï%` text)'],
    )  # fmt: skip
    rig = maria.rig.having(tables=maria.rig.config.tables.__class__(include=("*",)))
    rig.prepare()
    rig.write('INSERT INTO "Odd Schema"."Order ""x"" %s" SELECT i, \'%s\', \'%%\' FROM generate_series(1, 9) i')
    rig.write('UPDATE "Odd Schema"."Order ""x"" %s" SET "Ünï%" = \'b\', "Id" = "Id" + 5 WHERE "Id" > 6')
    rig.run()
    maria.require_equal(
        'SELECT * FROM `Odd Schema`.`Order "x" %s`', at_source='SELECT * FROM "Odd Schema"."Order ""x"" %s"'
    )


@gated
def test_a_comparison_tells_equal_tables_from_others(maria: MariaDbRig) -> None:
    columns = "b boolean, n numeric(10,3), f real, d double precision, at timestamptz, t timestamp, u uuid, x bytea"
    maria.make([f"CREATE TABLE t (id bigint PRIMARY KEY, {columns}, j jsonb, o time)"], [])
    maria.propose()
    maria.rig.prepare()
    maria.rig.write(
        "INSERT INTO t SELECT i, i % 2 = 0, i / 7.0, 0.1 * i, 1e-5 / i, '2024-03-31 01:30:00.5+00', '0999-01-01',"
        " gen_random_uuid(), decode(md5(i::text), 'hex'), '{\"a\": [1.0]}', '24:00:00' FROM generate_series(1, 50) i",
        "INSERT INTO t (id) VALUES (99)",
    )
    maria.rig.run()
    comparison = maria.rig.comparison()
    assert comparison.equal, comparison
    maria.server.run("UPDATE t SET f = f * 2 WHERE id = 7; DELETE FROM t WHERE id = 9", database="test")
    (table,) = maria.rig.comparison().tables
    assert {str(found) for found in table.differences} == {
        "(7) has other values in the target",
        "(9) is missing in the target",
    }


@gated
@pytest.mark.parametrize("lost", ["DROP DATABASE parallel_apply", "DELETE FROM parallel_apply.position"])
def test_a_pipeline_without_its_positions_applies_nothing_twice(maria: MariaDbRig, lost: str) -> None:
    source = ["CREATE TABLE bag (v text)", "ALTER TABLE bag REPLICA IDENTITY FULL"]
    maria.make(source, ["CREATE TABLE bag (v longtext)"])
    maria.rig.prepare()
    maria.rig.write("INSERT INTO bag VALUES ('a'), ('b')")
    maria.rig.run()
    maria.server.run(lost)
    maria.rig.write("INSERT INTO bag VALUES ('c')")
    with pytest.raises(ParallelApplyError, match=r"positions in .* are gone, and public\.bag has rows"):
        maria.rig.run()
    assert sorted(maria.read("SELECT v FROM bag")) == [("a",), ("b",)]
    maria.server.run("DELETE FROM bag", database=maria.database)
    maria.rig.run()
    maria.require_equal("SELECT v FROM bag")


def test_a_pipeline_without_some_of_its_positions_stops(maria: MariaDbRig) -> None:
    maria.make(KEYED, KEYED_THERE)
    maria.rig.prepare()
    maria.server.run("DELETE FROM parallel_apply.position WHERE channel = 1")
    maria.rig.write("INSERT INTO t VALUES (1, 1, 'a')")
    with pytest.raises(ParallelApplyError, match=r"positions in .* are gone.*parallel-apply drop"):
        maria.rig.run()


@gated
@pytest.mark.parametrize("consistency", [pytest.param(Consistency.CHANNEL, marks=GATED), Consistency.EPOCH])
def test_positions_that_go_under_the_lanes_end_the_run(maria: MariaDbRig, consistency: Consistency) -> None:
    rig = maria.rig.having(channels=2, consistency=consistency)
    maria.make(KEYED, KEYED_THERE)
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 9) i")
    rig.capture("r")
    plan(rig.config, rig.target)
    opened = rig.open("r")
    maria.server.run("DELETE FROM parallel_apply.position WHERE channel = 1")
    with pytest.raises(ParallelApplyError, match=r"positions in .* are gone.*parallel-apply drop"):
        rig.close(opened, rig.apply(opened))


@gated
def test_rows_that_were_there_are_copied_before_what_changes(maria: MariaDbRig) -> None:
    rig = maria.rig.having(start=Start.COPY, epoch_max_changes=100)
    maria.make(KEYED, KEYED_THERE)
    rig.write(
        "INSERT INTO t SELECT i, i, E'v \\t\\n\\\\ \\b' || i FROM generate_series(1, 300) i",
        "UPDATE t SET v = NULL WHERE id = 7",
    )
    maria.server.run("INSERT INTO t VALUES (1, 1, 'x')", database=maria.database)
    with pytest.raises(ParallelApplyError, match="has rows at the target"):
        rig.prepare()
    maria.server.run("DELETE FROM t", database=maria.database)
    rig.run()
    maria.require_equal("SELECT id, u, v FROM t")
    rig.write("DELETE FROM t WHERE id % 3 = 0", "UPDATE t SET u = u + 1000", "INSERT INTO t VALUES (900, 1, 'new')")
    rig.run()
    maria.require_equal("SELECT id, u, v FROM t")
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_row_that_no_partition_takes_is_told_with_its_table_and_what_leads_on(maria: MariaDbRig) -> None:
    maria.make(
        ["CREATE TABLE t (id int PRIMARY KEY)"],
        ["CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10))"],
    )
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t VALUES (1), (20)")
    with pytest.raises(ParallelApplyError, match=r"no partition for value 20.*table public\.t") as refused:
        maria.rig.run("one")
    assert "ADD PARTITION" in str(refused.value)
    maria.server.run("ALTER TABLE t ADD PARTITION (PARTITION q VALUES LESS THAN MAXVALUE)", database="test")
    maria.rig.run("one")
    assert maria.rig.comparison().equal
