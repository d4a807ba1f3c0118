"""Both sides are equal to the last byte after a run, whatever a table holds and a transaction does."""

from __future__ import annotations

import psycopg
import pytest

from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.config import DdlPolicy
from tests.integration.tables.equal import equal_after, rig_of_channels  # noqa: F401  # a fixture
from tests.support.rig import Rig
from tests.support.variants import gated

KEYS = {
    "integer": ["-2147483648", "0", "7"],
    "bigint": ["-1", "9223372036854775807", "0"],
    "text": ["''", "'a b'", "E'tab\\there\\\\'"],
    "varchar(20)": ["'x'", "'X'", "'y  '"],
    "char(8)": ["'x'", "'xy'", "''"],
    "uuid": ["gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'", "gen_random_uuid()"],
    "numeric": ["1.50", "-0.001", "1e30"],
    "numeric(12,2)": ["1.5", "2", "-3.25"],
    "timestamp": ["'2026-01-02 03:04:05.678901'", "'infinity'", "'0044-03-15 12:00:00 BC'"],
    "timestamptz": ["'2026-01-02 03:04:05+05'", "'-infinity'", "now()"],
    "date": ["'2026-01-02'", "'2026-02-28'", "'infinity'"],
    "double precision": ["0.1", "'-0'", "'infinity'"],
    "boolean": ["true", "false"],
    "bytea": ["'\\x00ff'", "''", "'abc'"],
}


@gated
def test_a_run_without_new_changes_applies_nothing_and_moves_nothing(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    equal_after(rig, lambda: rig.write("INSERT INTO t SELECT generate_series(1, 20)", "DELETE FROM t WHERE id % 3 = 0"))
    written = "SELECT max(xmin::text::bigint), count(*) FROM t"
    before, reached = rig.rows(written), [channel.seqno for channel in read_status(rig.target, "p").channels]
    assert rig.run().rows == 0
    assert rig.rows(written) == before
    assert [channel.seqno for channel in read_status(rig.target, "p").channels] == reached


@gated
def test_keys_of_every_type(rig: Rig) -> None:
    tables = {f"t{number}": (key_type, keys) for number, (key_type, keys) in enumerate(KEYS.items())}
    rig.both(*(f"CREATE TABLE {table} (id {key_type} PRIMARY KEY, v text)" for table, (key_type, _) in tables.items()))

    def write() -> None:
        for table, (key_type, keys) in tables.items():
            rig.write(
                *(f"INSERT INTO {table} VALUES ({key}, 'v{number}')" for number, key in enumerate(keys)),
                f"UPDATE {table} SET v = v || ' again'",
                f"UPDATE {table} SET v = NULL WHERE id = (SELECT min(id::text) FROM {table})::{key_type}",
                f"DELETE FROM {table} WHERE id = (SELECT max(id::text) FROM {table})::{key_type}",
            )

    equal_after(rig, write)


@gated
def test_composite_keys_and_nulls(rig: Rig) -> None:
    rig.both("CREATE TABLE t (a text, b integer, c text, d numeric, PRIMARY KEY (b, a))")

    def write() -> None:
        rig.write("INSERT INTO t SELECT 'a' || i % 3, i, NULL, i / 7.0 FROM generate_series(1, 200) i")
        rig.write("UPDATE t SET c = 'x', d = NULL WHERE b % 5 = 0", "DELETE FROM t WHERE b % 7 = 0")
        rig.write("UPDATE t SET b = b + 1000 WHERE b % 11 = 0")

    equal_after(rig, write)


@gated
def test_quoted_and_mixed_case_names_in_several_schemas(rig: Rig) -> None:
    rig.both(
        'CREATE SCHEMA "My Schema"',
        "CREATE SCHEMA other",
        'CREATE TABLE "My Schema"."Or""der" ("Id" integer PRIMARY KEY, "select" text, "Ünï" text)',
        'CREATE TABLE other."Or""der" ("Id" integer PRIMARY KEY, "select" text)',
    )  # fmt: skip

    def write() -> None:
        rig.write('INSERT INTO "My Schema"."Or""der" SELECT i, \'x\' || i, NULL FROM generate_series(1, 50) i')
        rig.write('INSERT INTO other."Or""der" SELECT i, \'y\' || i FROM generate_series(1, 50) i')
        rig.write(
            'UPDATE "My Schema"."Or""der" SET "Ünï" = \'é\' WHERE "Id" < 20',
            'DELETE FROM other."Or""der" WHERE "Id" > 30',
        )

    equal_after(rig, write)


@gated
def test_rows_of_a_table_without_a_key_arrive_once(rig: Rig) -> None:
    rig.both("CREATE TABLE t (a integer, b text)")

    def write() -> None:
        for _ in range(3):
            rig.write("INSERT INTO t SELECT i % 5, 'same' FROM generate_series(1, 100) i")

    equal_after(rig, write)
    assert rig.rows("SELECT count(*) FROM t") == [(300,)]


@gated
def test_a_target_with_other_column_order_and_defaulted_columns(rig: Rig) -> None:
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, a text, b numeric)")
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute(
            "CREATE TABLE t (b numeric, loaded timestamptz DEFAULT now() NOT NULL,"
            " id integer PRIMARY KEY, a text, e text)"
        )
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a', 1.50), (2, NULL, 2)", "UPDATE t SET b = 3.000 WHERE id = 2")
    rig.run()
    assert rig.rows("SELECT id, a, b::text, loaded IS NOT NULL, e FROM t ORDER BY id") == [
        (1, "a", "1.50", True, None),
        (2, None, "3.000", True, None),
    ]


@pytest.mark.parametrize(
    "serial", [pytest.param(False, id="merged", marks=pytest.mark.long), pytest.param(True, id="replayed")]
)
def test_columns_that_are_generated_always_as_identity_take_other_values(rig: Rig, serial: bool) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both(
        "CREATE TABLE k (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text)",
        "CREATE TABLE n (id integer PRIMARY KEY, n integer GENERATED ALWAYS AS IDENTITY, v text)",
        "CREATE TABLE bag (n integer GENERATED ALWAYS AS IDENTITY, v text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
    )
    critical = [rig.ddl("SELECT 1")] if serial else []

    def write() -> None:
        rig.write(
            "INSERT INTO k (v) SELECT i FROM generate_series(1, 30) i",
            "INSERT INTO n (id, v) SELECT i, i FROM generate_series(1, 30) i",
            "INSERT INTO bag (v) SELECT i FROM generate_series(1, 30) i",
        )
        rig.run()
        for table in ("k", "n", "bag"):
            column = "id" if table == "k" else "n"
            rig.transaction(
                *critical,
                f"UPDATE {table} SET {column} = DEFAULT WHERE {column} % 3 = 0",
                f"UPDATE {table} SET {column} = DEFAULT, v = 'both' WHERE {column} % 5 = 0",
                f"UPDATE {table} SET v = 'other' WHERE {column} % 7 = 0",
            )

    equal_after(rig, write)


@gated
def test_a_key_without_overlaps_tells_rows_apart_that_overlap_in_parts_of_it(rig: Rig) -> None:
    rig.both("CREATE TABLE t (r int4range, during daterange, v text, PRIMARY KEY (r, during WITHOUT OVERLAPS))")

    def write() -> None:
        rig.write("INSERT INTO t SELECT int4range(i, i + 5), '[2026-01-01,2026-02-01)', i FROM generate_series(1, 9) i")
        rig.run()
        rig.write(
            "UPDATE t SET v = 'changed' WHERE lower(r) % 2 = 0",
            "DELETE FROM t WHERE lower(r) % 3 = 0",
            "UPDATE t SET during = '[2026-03-01,2026-04-01)' WHERE lower(r) % 5 = 0",
        )

    equal_after(rig, write)


@gated
def test_transactions_that_were_rolled_back_leave_nothing(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")

    def write() -> None:
        with psycopg.connect(rig.source_dsn) as connection:
            connection.execute("INSERT INTO t VALUES (1)")
            connection.rollback()
            connection.execute("INSERT INTO t VALUES (2)")
            connection.execute("SAVEPOINT s")
            connection.execute("INSERT INTO t VALUES (3)")
            connection.execute("ROLLBACK TO s")

    equal_after(rig, write)
    assert rig.rows("SELECT id FROM t") == [(2,)]


@gated
def test_replica_identity_full_with_a_key(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text, w text)", "ALTER TABLE t REPLICA IDENTITY FULL")

    def write() -> None:
        rig.write("INSERT INTO t SELECT i, 'v', repeat(md5(i::text), 200) FROM generate_series(1, 40) i")
        rig.write(
            "UPDATE t SET v = NULL WHERE id < 10",
            "UPDATE t SET id = id + 100 WHERE id < 5",
            "DELETE FROM t WHERE id > 30",
        )

    equal_after(rig, write)


@gated
def test_handed_over_unique_values_and_foreign_keys(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY, code text UNIQUE)",
        "CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent ON DELETE CASCADE)",
    )

    def write() -> None:
        rig.write("INSERT INTO parent VALUES (1, 'a'), (2, 'b')", "INSERT INTO child VALUES (1, 1), (2, 2)")
        rig.transaction(
            "UPDATE parent SET code = 'c' WHERE id = 1", "UPDATE parent SET code = 'a' WHERE id = 2",
            "UPDATE parent SET code = 'b' WHERE id = 1",
        )  # fmt: skip
        rig.transaction("DELETE FROM parent WHERE id = 2", "INSERT INTO parent VALUES (3, 'a')")

    equal_after(rig, write)
