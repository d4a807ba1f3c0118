"""Positions, plan and frozen runs that an earlier version stored are gone on from, whichever version it was."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.target.open import open_target
from airflow_parallel_apply.pipeline.target.postgres import schema
from airflow_parallel_apply.router.plan import plan
from tests.support.rig import Rig, execute
from tests.support.variants import variants

TABLES = ("pipeline", "position", "epoch", "run")
"""Parents first."""
FORMER_NAMES = {"until_offset": "until_lsn"}
VERSIONS = [str(version) for version in range(1, schema.VERSION)]


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        start=Start.EMPTY, pipeline="p", log_url=str(tmp_path / "log"), channels=3, epoch_max_changes=20
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return made


def write(rig: Rig, first: int) -> None:
    rig.write(*(f"INSERT INTO t VALUES ({number}, 'a')" for number in range(first, first + 60)))
    rig.write(f"UPDATE t SET v = v || 'b' WHERE id >= {first - 30}", "TRUNCATE t" if first > 100 else "SELECT 1")


def rows_of(connection: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
    cursor = connection.execute(sql.SQL("SELECT * FROM parallel_apply.{}").format(sql.Identifier(table)))
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def columns_of(connection: psycopg.Connection[Any], table: str) -> list[str]:
    query = (
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'parallel_apply' AND table_name = %s"
    )
    return [name for (name,) in connection.execute(query, [table]).fetchall()]


def store_as(rig: Rig, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same state in the tables of an earlier version, as that version made them; its queue is lost."""
    with psycopg.connect(rig.target_dsn) as connection:
        stored = {table: rows_of(connection, table) for table in TABLES}
    execute(rig.target_dsn, "DROP SCHEMA parallel_apply CASCADE")
    with monkeypatch.context() as before, closing(open_target(rig.target, "p")) as target:
        before.setattr(schema, "VERSION", version)
        target.migrate()
    with psycopg.connect(rig.target_dsn) as connection:
        for table in TABLES:
            there = columns_of(connection, table)
            for row in stored[table]:
                row |= {FORMER_NAMES[name]: row[name] for name in FORMER_NAMES if name in row}
                kept = [name for name in there if name in row]
                statement = sql.SQL("INSERT INTO parallel_apply.{} ({}) VALUES ({})").format(
                    sql.Identifier(table),
                    sql.SQL(", ").join(map(sql.Identifier, kept)),
                    sql.SQL(", ").join(sql.Placeholder() * len(kept)),
                )
                values = [Jsonb(row[name]) if isinstance(row[name], dict) else row[name] for name in kept]
                connection.execute(statement, values)


@pytest.mark.parametrize("version", variants(VERSIONS, seldom=[one for one in VERSIONS if one not in ("1", "9")]))
def test_a_pipeline_goes_on_from_what_an_earlier_version_stored(
    rig: Rig, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.prepare()
    write(rig, 0)
    closed = rig.run("before")
    write(rig, 60)
    rig.capture("after")
    plan(rig.config, rig.target)
    with closing(open_pipeline(rig.target, "p")) as session:
        planned = session.ledger.epochs()
        positions = [(one.channel, one.seqno, one.generation) for one in session.target.positions()]

    store_as(rig, int(version), monkeypatch)
    with closing(open_pipeline(rig.target, "p")) as session:
        session.migrate()
        assert [(one.channel, one.seqno, one.generation) for one in session.target.positions()] == positions
        found = session.ledger.epochs()
        assert [(one.number, one.first_seqno, one.last_seqno, one.kind, one.rows) for one in found] == [
            (one.number, one.first_seqno, one.last_seqno, one.kind, one.rows) for one in planned
        ]
        bounds = session.ledger.run_bounds("before")
        assert bounds is not None
        assert bounds.until_seqno == closed.stop_seqno

    again = rig.run("before")
    assert (again.rows, again.stop_seqno) == (0, closed.stop_seqno), "a frozen run does the same work again"
    write(rig, 120)
    rig.run("after that")
    assert rig.comparison().equal
