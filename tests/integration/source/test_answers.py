"""The kept answers of the catalog are those that asking again would bring, whatever the tables went through."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import list_tables, tables_now
from airflow_parallel_apply.pipeline.source.postgres.catalog.described import describe_now
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import shapes, shapes_now
from airflow_parallel_apply.pipeline.source.postgres.proof.observed import observe, observe_now
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from tests.integration.source.conftest import Scene
from tests.support.variants import GATED

TABLES = ("a", "b", "s.c")
DDL = (
    "CREATE TABLE {t} (id int PRIMARY KEY, n numeric(10, 2) NOT NULL)",
    'CREATE TABLE {t} (id int, e app_kind, x text COLLATE "C") PARTITION BY LIST (id)',
    "CREATE TABLE {t}_{n} PARTITION OF {t} FOR VALUES IN ({n})",
    "ALTER TABLE {t} DETACH PARTITION {t}_{n}",
    "TRUNCATE {t}_{n}",
    "DROP TABLE {t}",
    "ALTER TABLE {t} ADD COLUMN c{n} int",
    "ALTER TABLE {t} ADD COLUMN c{n} int GENERATED ALWAYS AS (id + {n}) STORED",
    "ALTER TABLE {t} DROP COLUMN c{n}",
    "ALTER TABLE {t} RENAME COLUMN c{n} TO d{n}",
    "ALTER TABLE {t} ALTER COLUMN c{n} TYPE bigint",
    "ALTER TABLE {t} ALTER COLUMN c{n} SET NOT NULL",
    "ALTER TABLE {t} ALTER COLUMN n TYPE numeric(12, {n})",
    "ALTER TABLE {t} RENAME TO renamed_{n}",
    "ALTER TABLE renamed_{n} RENAME TO {u}",
    "ALTER TABLE {t} REPLICA IDENTITY FULL",
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
    "CREATE UNIQUE INDEX i{n} ON {t} (id)",
    "DROP INDEX i{n}",
    "TRUNCATE {t}",
    "INSERT INTO {t} (id) VALUES ({n})",
    "VACUUM FULL {t}",
    "VACUUM FREEZE {t}",
    "VACUUM FREEZE pg_class",
    "ANALYZE {t}",
    "ALTER TYPE app_kind ADD VALUE 'k{n}'",
    "ALTER TYPE app_kind RENAME VALUE 'k{n}' TO 'l{n}'",
    "ALTER TYPE app_kind RENAME TO app_kind_{n}",
    "ALTER TYPE app_kind_{n} RENAME TO app_kind",
    "ALTER SCHEMA s RENAME TO s{n}",
    "ALTER SCHEMA s{n} RENAME TO s",
    "ALTER PUBLICATION answers ADD TABLE {t}",
    "ALTER PUBLICATION answers DROP TABLE {t}",
    "ALTER PUBLICATION answers SET (publish = 'insert')",
    "ALTER PUBLICATION answers SET (publish = 'insert, update, delete, truncate')",
    "COMMENT ON PUBLICATION answers IS 'parallel_apply {n}'",
    "GRANT SELECT ON {t} TO PUBLIC",
)  # fmt: skip


@pytest.fixture
def session(scene: Scene) -> Iterator[Session]:
    scene.execute(
        "CREATE SCHEMA s",
        "CREATE TYPE app_kind AS ENUM ('k0', 'k1')",
        "CREATE PUBLICATION answers WITH (publish_via_partition_root = true)",
        *(DDL[0].format(t=table) for table in TABLES),
    )
    with closing(Session(Endpoint(conn_id="source", url=scene.dsn), application_name="test")) as session:
        yield session


def kept(session: Session) -> tuple[Any, ...]:
    """Everything that is asked of the catalog by way of `Answers`."""
    tables = tables_now(session, "answers")
    found = shapes_now(session, [table.oid for table in tables])
    described = describe_now(session.catalog(), "answers", tables, found[1])
    return tables, dict(found[1]), described, observe_now(session, "answers", ())


def asked(session: Session) -> tuple[Any, ...]:
    """The same, asked anew. Without the event trigger nothing tells of names."""
    connection = session.catalog()
    tables = list_tables(connection, "answers")
    found = shapes(connection, [table.oid for table in tables])
    untold = {oid: replace(shape, table=None) for oid, shape in found.items()}
    return tables, untold, describe_now(connection, "answers", tables), observe(connection, "answers")


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=GATED if seed == 1 else pytest.mark.long) for seed in range(1, 9)]
)
def test_no_kept_answer_outlives_what_it_was_an_answer_to(session: Session, scene: Scene, seed: int) -> None:
    random_ = random.Random(seed)
    moved = 0
    # A partition tree is read under a lock.
    session.catalog().execute("SET lock_timeout = '100ms'")
    with psycopg.connect(scene.dsn) as writer, psycopg.connect(scene.dsn, autocommit=True) as other:
        for connection in (writer, other):
            connection.execute("SET lock_timeout = '20ms'")
        writer.commit()
        before = kept(session)
        for number in range(250):
            statement = random_.choice(DDL).format(
                t=random_.choice(TABLES), u=random_.choice(TABLES), n=random_.randrange(3)
            )
            # Some commit at once; some stay open while others begin and end.
            try:
                (other if "VACUUM" in statement or random_.random() < 0.4 else writer).execute(statement)
            except psycopg.Error:
                writer.rollback()
            if random_.random() < 0.4:
                (writer.commit if random_.random() < 0.7 else writer.rollback)()
            for _ in range(2):
                try:
                    now, asked_now = kept(session), asked(session)
                    break
                except psycopg.errors.LockNotAvailable:
                    writer.rollback()
            assert now == asked_now, f"step {number}: {statement}"
            moved, before = moved + (now != before), now
        writer.rollback()
    assert moved > 20


def test_a_question_is_asked_once_while_nothing_ends(session: Session, scene: Scene) -> None:
    asked_at: list[int] = []

    def ask(connection: psycopg.Connection[Any]) -> int:
        asked_at.append(connection.info.backend_pid)
        return len(asked_at)

    assert [session.answer("one", ask), session.answer("one", ask), session.answer("two", ask)] == [1, 1, 2]
    with psycopg.connect(scene.dsn) as writer:
        writer.execute("CREATE TABLE later (id int)")
        assert session.answer("one", ask) == 1
        writer.commit()
        assert session.answer("one", ask) == 3
    scene.execute("CREATE TABLE latest (id int)")
    with session.catalog().transaction():
        # Its own changes are in no snapshot.
        assert [session.answer("one", ask), session.answer("one", ask)] == [4, 5]
    assert session.answer("one", ask) == 6
    session.catalog().close()
    # Behind another connection there may be another server.
    assert session.answer("one", ask) == 7
