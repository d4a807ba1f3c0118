"""The log has what the source committed: every value exactly, every transaction once, whatever happens meanwhile."""

from __future__ import annotations

import random

import psycopg
import pytest

from airflow_parallel_apply.pipeline.model.sent_ddl import written
from tests.integration.source.conftest import EVERYTHING, Scene
from tests.support.ddl_messages import ddl, install
from tests.support.variants import gated

EXACT = "-c datestyle=ISO,YMD -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex"

ALL_TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE pair AS (a int, b text);
CREATE TABLE everything (
    id bigint PRIMARY KEY, i2 smallint, i4 int, n numeric, n2 numeric(20,5), f4 real, f8 double precision, b boolean,
    t text, v varchar(20), c char(6), by bytea, d date, ti time, tt timetz, ts timestamp, tz timestamptz, iv interval,
    u uuid, j json, jb jsonb, ar int[], ta text[], m mood, dom positive, p pair, ra int4range, inet inet, bi bit(3),
    vb varbit, mo money, pt point, ls pg_lsn, tv tsvector, oi oid, na name
)
"""
ROWS_OF_ALL_TYPES = (
    """INSERT INTO everything VALUES
    (1, -32768, 2147483647, 123456789012345678901234567890.123450, 1.5, 1e-10, 0.1, true,
    E'tab\\tnew\\nline \\\\ "q" ä 漢 😀', '', 'ab', '\\x00ff', '2024-02-29', '23:59:59.999999', '12:00+05:30',
    '2024-02-29 12:00:00.5', '2024-06-01 12:00:00+02', '1 year 2 mons -3 days 04:05:06.7',
    'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{"a":  1}', '{"a":  1}', '{1,NULL,3}', '{"a,b","c\\"d",NULL}',
    'it''s "ok"', 5, '(1,"x,y")', '[1,5)', '10.0.0.1/24', '101', '1', 12.34, '(1.5,2)', '0/16B3748',
    'a fat cat', 7, 'name')""",
    """INSERT INTO everything (id, n, f4, f8, d, ts, tz, ra, ar, c) VALUES
    (2, 'NaN', '-Infinity', 'NaN', 'infinity', '-infinity', '0044-03-15 12:00:00+00 BC', 'empty', '{}', ''),
    (3, 'Infinity', -0.0, 1.7976931348623157e308, '4713-01-01 BC', '294276-12-31', 'infinity', '(,)',
    '[0:1]={1,2}', ' '),
    (4, 0.000, 3.4028235e38, 5e-324, NULL, NULL, NULL, NULL, NULL, NULL)""",
    "UPDATE everything SET t = NULL, f8 = 1/3.0, v = 'NULL' WHERE id = 1",
)


def texts(scene: Scene, table: str) -> list[tuple[str | None, ...]]:
    """A table as the server writes it under the settings that make text exact."""
    with psycopg.connect(scene.dsn, options=EXACT, autocommit=True) as connection:
        query = (
            "SELECT string_agg(format('%I::text', attname), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = "
        )
        query += f"'{table}'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
        columns = (connection.execute(query).fetchone() or ("",))[0]
        return sorted(connection.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)


def test_values_of_every_type_arrive_exactly(scene: Scene) -> None:
    scene.execute(*filter(str.strip, ALL_TYPES.split(";")))
    scene.source().prepare()
    scene.execute(*ROWS_OF_ALL_TYPES)
    scene.capture()
    captured = scene.contents()["public.everything"]
    expected = texts(scene, "everything")
    # char(n)::text drops the padding that char(n) itself has.
    padded = [tuple(v.ljust(6) if i == 10 and v is not None else v for i, v in enumerate(row)) for row in expected]
    # boolean::text is a word; the type's own text is one letter.
    letters = [
        tuple({"true": "t", "false": "f"}[v] if i == 7 and v else v for i, v in enumerate(row)) for row in padded
    ]
    assert captured == letters


@gated
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_a_random_history_replays_to_the_same_rows(scene: Scene, seed: int) -> None:
    random_ = random.Random(seed)
    scene.execute(
        'CREATE SCHEMA "Odd.Schema"',
        "CREATE TABLE by_int (id int PRIMARY KEY, v text)",
        'CREATE TABLE "Odd.Schema"."Mixed ""Case" ("Key" text, b uuid, n numeric, PRIMARY KEY ("Key", b))',
        "CREATE TABLE by_time (at timestamptz PRIMARY KEY, big text)",
        "ALTER TABLE by_time ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
        "CREATE TABLE keyless (a int, b text)",
    )
    tables = scene.config.tables.__class__(include=("public.*", "Odd.Schema.*"))
    scene.source(tables=tables).prepare()
    for _ in range(60):
        scene_transaction(scene, random_)
        if random_.random() < 0.2:
            scene.capture(max_changes=random_.choice([1, 5, EVERYTHING]), batch_bytes=random_.choice([200, 10_000]))
    scene.capture(max_changes=7)
    contents = scene.contents()
    for name, table in (
        ("public.by_int", "by_int"),
        ('Odd.Schema.Mixed "Case', '"Odd.Schema"."Mixed ""Case"'),
        ("public.by_time", "by_time"),
        ("public.keyless", "keyless"),
    ):
        assert contents.get(name, []) == texts(scene, table), name
    assert scene.shown("seqno", "fragno") == sorted(scene.shown("seqno", "fragno"))
    assert scene.transactions().column("seqno").to_pylist() == list(range(scene.state().last_seqno + 1))


def scene_transaction(scene: Scene, random_: random.Random) -> None:
    """Some statements that may fail; then, by chance, commit, roll back, or roll back a part."""
    key, other = random_.randrange(12), random_.randrange(12)
    text = random_.choice(["NULL", "'x'", "''", "repeat('y', 3000)", "'ä'"])
    mixed = '"Odd.Schema"."Mixed ""Case"'
    statements = [
        f"INSERT INTO by_int SELECT g, {text} FROM generate_series({key}, {key + 5}) g ON CONFLICT DO NOTHING",
        f"UPDATE by_int SET v = {text} WHERE id <= {key}",
        f"UPDATE by_int SET id = id + 100 WHERE id = {key} AND NOT EXISTS (SELECT FROM by_int WHERE id = {key + 100})",
        f"DELETE FROM by_int WHERE id = {other}",
        f"INSERT INTO {mixed} VALUES ('k{key},\\', gen_random_uuid(), 1.{key}0)",
        f'UPDATE {mixed} SET "Key" = "Key" || \'x\', n = -n WHERE "Key" < \'k{other}\'',
        f"DELETE FROM {mixed} WHERE \"Key\" LIKE 'k{key}%'",
        f"INSERT INTO by_time VALUES ('2024-01-{key + 1} 00:00:00.{other}+02', {text}) ON CONFLICT DO NOTHING",
        f"UPDATE by_time SET at = at + interval '1 year' WHERE extract(day FROM at) = {key}",
        f"DELETE FROM by_time WHERE extract(day FROM at) = {other}",
        f"INSERT INTO keyless VALUES ({key}, {text})",
        "TRUNCATE keyless, by_int" if random_.random() < 0.1 else "SELECT 1",
    ]
    with psycopg.connect(scene.dsn) as connection:
        for statement in random_.sample(statements, random_.randrange(1, 5)):
            with connection.transaction(force_rollback=random_.random() < 0.1):
                connection.execute(statement)
        if random_.random() < 0.2:
            connection.rollback()


def test_a_chain_of_keys_in_one_transaction_keeps_its_order(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    scene.source().prepare()
    scene.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    scene.transaction("UPDATE t SET id = 3 WHERE id = 2", "UPDATE t SET id = 2 WHERE id = 1")
    scene.capture()
    assert scene.shown("seqno", "fragno", "operation", "key", "values", "old_key")[2:] == [
        (1, 0, "X", "2", ["2", None], None),
        (1, 1, "K", "3", ["3", "b"], ["2"]),
        (1, 2, "X", "1", ["1", None], None),
        (1, 3, "K", "2", ["2", "a"], ["1"]),
    ]


def test_an_unchanged_toast_value_is_unsent_and_under_full_identity_taken_from_the_old_row(scene: Scene) -> None:
    scene.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, a text, big text)",
        "CREATE TABLE whole (id int PRIMARY KEY, a text, big text)",
        "ALTER TABLE plain ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE whole ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
    )
    scene.source().prepare()
    for table in ("plain", "whole"):
        scene.execute(
            f"INSERT INTO {table} VALUES (1, 'a', repeat('x', 9000))",
            f"UPDATE {table} SET a = 'b'",
            f"UPDATE {table} SET id = 2",
            f"DELETE FROM {table}",
        )
    scene.capture()
    big = "x" * 9000
    seen = scene.shown("operation", "values", "unsent", "old_key")
    assert seen == [
        ("I", ["1", "a", big], None, None),
        ("U", ["1", "b", None], [2], None),
        ("X", ["1", None, None], None, None),
        ("K", ["2", "b", None], [2], ["1"]),
        ("D", ["2", None, None], None, None),
        ("I", ["1", "a", big], None, None),
        ("U", ["1", "b", big], None, None),
        ("X", ["1", None, None], None, None),
        ("K", ["2", "b", big], None, ["1"]),
        ("D", ["2", None, None], None, None),
    ]
    assert [marks for marks in scene.transactions().column("marks").to_pylist() if marks] == [["key_unsent"]]


def test_numerics_and_floats_of_equal_value_are_one_key(scene: Scene) -> None:
    scene.execute("CREATE TABLE n (k numeric PRIMARY KEY, v int)", "CREATE TABLE f (k float8 PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(
        "INSERT INTO n VALUES (1.0, 1)", "UPDATE n SET k = 1.000", "INSERT INTO f VALUES ('-0')", "UPDATE f SET k = 0"
    )
    scene.capture()
    assert scene.shown("operation", "key", "values") == [
        ("I", "1", ["1.0", "1"]),
        ("X", "1", ["1.0", None]),
        ("K", "1", ["1.000", "1"]),
        ("I", "0", ["-0"]),
        ("X", "0", ["-0"]),
        ("K", "0", ["0"]),
    ]


def test_a_key_without_canonical_text_keeps_its_table_in_one_bucket(scene: Scene) -> None:
    scene.execute(
        "CREATE TABLE a (k interval PRIMARY KEY)",
        "CREATE TABLE b (k int[] PRIMARY KEY)",
        "CREATE DOMAIN small AS varchar(5)",
        "CREATE TABLE c (k small PRIMARY KEY)",
    )
    scene.source().prepare()
    scene.execute(
        "INSERT INTO a SELECT make_interval(g) FROM generate_series(1, 9) g",
        "INSERT INTO b SELECT ARRAY[g] FROM generate_series(1, 9) g",
        "INSERT INTO c SELECT 'k' || g FROM generate_series(1, 9) g",
    )
    scene.capture()
    buckets = {table: {row["bucket"] for row in scene.rows() if row["table"] == f"public.{table}"} for table in "abc"}
    assert [len(buckets[table]) for table in "abc"] == [1, 1, 9]
    assert {relation.table: relation.canonical for relation in scene.state().relations} == {
        "a": False,
        "b": False,
        "c": True,
    }


def test_a_column_that_has_another_name_by_now_is_compared_by_the_collation_that_it_has(scene: Scene) -> None:
    """The server of the tests makes no collation that is not deterministic."""
    scene.execute(
        'CREATE COLLATION folded FROM "C"',
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'folded'",
        "CREATE TABLE t (k text COLLATE folded PRIMARY KEY)",
    )
    scene.source().prepare()
    scene.execute(
        "INSERT INTO t SELECT 'k' || g FROM generate_series(1, 9) g",
        "ALTER TABLE t RENAME k TO before",
        "ALTER TABLE t ADD k text",
    )
    scene.capture()
    assert len({row["bucket"] for row in scene.rows()}) == 1


@gated
def test_ddl_messages_truncates_and_redefinitions_are_marked(scene: Scene) -> None:
    install(scene.dsn)
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute("INSERT INTO t VALUES (1)", "INSERT INTO other VALUES (1)")
    scene.transaction(
        ddl("ALTER TABLE t ADD v int"),
        "ALTER TABLE t ADD v int",
    )
    scene.execute(
        "SELECT pg_logical_emit_message(false, 'parallel_apply.ddl', 'not transactional')",
        "SELECT pg_logical_emit_message(true, 'other', 'not ours')",
        "INSERT INTO t VALUES (2, 3)",
        "TRUNCATE t, other RESTART IDENTITY",
        "INSERT INTO t VALUES (3, 4)",
    )
    scene.capture(max_changes=1)
    marks = scene.transactions().column("marks").to_pylist()
    assert marks == [[], [], ["message"], ["relation"], ["truncate"], []]
    (operation, (prefix, text)), *rest = scene.shown("operation", "values")[2:6]
    assert (operation, prefix, written(text)) == ("M", "parallel_apply.ddl", "ALTER TABLE t ADD v int")
    assert rest == [
        ("I", ["2", "3"]),
        ("T", ["restart_identity"]),
        ("T", ["restart_identity"]),
    ]


def test_a_partitioned_table_is_followed_as_one(scene: Scene) -> None:
    scene.execute(
        "CREATE TABLE parent (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF parent FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF parent FOR VALUES FROM (10) TO (20)",
    )
    assert scene.source().prepare().tables == ("public.parent",)
    scene.execute("INSERT INTO parent VALUES (1, 'a'), (11, 'b')", "UPDATE parent SET id = 12 WHERE id = 1")
    scene.capture()
    assert {row["table"] for row in scene.rows()} == {"public.parent"}
    assert scene.contents()["public.parent"] == texts(scene, "parent")
