"""A captured LSN never passes over the start of a commit that was not decoded, whatever lies around it in the WAL."""

from __future__ import annotations

import random

import psycopg
import pytest

from airflow_parallel_apply.pipeline.source.postgres.lsn import inserted_lsn
from tests.integration.source.conftest import Scene
from tests.support.variants import gated

MESSAGE = "SELECT pg_logical_emit_message(false, 'beat', '')"
WITHIN = "SELECT pg_logical_emit_message(true, 'other', '')"


@pytest.fixture
def followed(scene: Scene) -> Scene:
    scene.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE SCHEMA unfollowed", "CREATE TABLE unfollowed.t (a int)"
    )
    scene.source().prepare()
    return scene


@gated
@pytest.mark.parametrize("max_changes", [1, 2, 3])
def test_a_commit_right_behind_a_message_is_captured(followed: Scene, max_changes: int) -> None:
    for number in range(6):
        followed.transaction(f"INSERT INTO t VALUES ({number})", MESSAGE)
    followed.capture(max_changes=max_changes)
    assert [row["key"] for row in followed.rows()] == [str(number) for number in range(6)]


@gated
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_nothing_around_a_commit_hides_it(followed: Scene, seed: int) -> None:
    random_ = random.Random(seed)
    committed = []
    for number in range(60):
        inside = [random_.choice([MESSAGE, WITHIN, "INSERT INTO unfollowed.t VALUES (1)"]) for _ in range(2)]
        if random_.random() < 0.6:
            inside.insert(random_.randrange(3), f"INSERT INTO t VALUES ({number})")
        with psycopg.connect(followed.dsn) as connection:
            for statement in inside:
                connection.execute(statement)
            end = random_.choice(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "prepared", "rolled back prepared"])
            if "prepared" in end:
                connection.execute(f"PREPARE TRANSACTION '{followed.slot}'")
                connection.autocommit = True
                if random_.random() < 0.5:
                    connection.execute(MESSAGE)
                connection.execute(f"{'COMMIT' if end == 'prepared' else 'ROLLBACK'} PREPARED '{followed.slot}'")
            else:
                connection.execute(end)
        if end in ("COMMIT", "prepared"):
            committed += [str(number)] * (len(inside) == 3)
        if random_.random() < 0.3:
            followed.capture(max_changes=random_.choice([1, 2]))
    followed.capture(max_changes=1)
    assert [row["key"] for row in followed.rows()] == committed


def test_a_database_with_unusual_defaults_is_captured(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY, f float8, b bytea, d date, i interval)")
    name = scene.value("SELECT current_database()")
    scene.execute(
        *(
            f"ALTER DATABASE {name} SET {setting}"
            for setting in (
                "bytea_output = 'escape'",
                "extra_float_digits = -3",
                "datestyle = 'German'",
                "intervalstyle = 'sql_standard'",
                "standard_conforming_strings = off",
                "default_transaction_read_only = on",
                "transform_null_equals = on",
            )
        )
    )
    scene.source().prepare()
    scene.execute(
        "SET default_transaction_read_only = off",
        "INSERT INTO t VALUES (1, 1/3.0::float8, 'ab', '2024-02-29', '1 day')",
    )
    scene.capture()
    assert scene.shown("values") == [(["1", "0.3333333333333333", r"\x6162", "2024-02-29", "1 day"],)]


def test_the_end_of_the_wal_is_behind_a_record_that_ends_a_few_bytes_into_a_page(scene: Scene) -> None:
    with psycopg.connect(scene.dsn, autocommit=True) as connection:

        def written(size: int) -> int:
            connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', %s))", [size])
            (end,) = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone() or (0,)
            return int(end)

        end = written(0)
        for size in range(2000):
            while (room := 8192 - end % 8192) > 300:
                end = written(room // 2)
            end = written(size % 300)
            if end % 8192 in (32, 40):
                break
        assert end % 8192 in (32, 40)
        assert inserted_lsn(connection) == end
