"""Tables of every awkward kind under random transactions, eight channels: both sides equal to the last byte.

`AWKWARD_SEEDS` repeats other histories, or looks for them: "7 8 9".
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, DdlPolicy, EpochProtocol, PipelineConfig, TablePatterns
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.awkward_tables import make_tables
from tests.support.awkward_writer import Writer
from tests.support.ddl_messages import install
from tests.support.rig import Rig
from tests.support.variants import GATED

SEEDS = [int(seed) for seed in os.environ.get("AWKWARD_SEEDS", "1 2").split()]
PROTOCOLS = [EpochProtocol.LEADER_MERGE, EpochProtocol.TWO_PHASE]


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="awkward",
        log_url=str(tmp_path / "log"),
        channels=8,
        tables=TablePatterns(include=("*.*",)),
        ddl=DdlPolicy.APPLY,
        epoch_max_changes=120,
        # Small units, so that channels are far apart.
        unit_max_bytes=2**14,
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("barriers", [True, False], ids=["with barriers", "without"])
@pytest.mark.parametrize("seed", SEEDS)
def test_awkward_tables_are_equal_to_the_last_byte_after_random_transactions(
    rig: Rig, seed: int, barriers: bool
) -> None:
    """One lane for every other seed, which leaves channels furthest apart; else three."""
    lanes = 1 + seed % 2 * 2
    require_equal_after(rig.having(lanes=lanes), seed, runs=3, barriers=barriers)
    # Several lanes may be lucky.
    if lanes == 1 and not barriers:
        assert rig.rows("SELECT sum(count) > 0 FROM parallel_apply.rework WHERE kind = 'merge point'") == [(True,)]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("barriers", [True, False], ids=["with barriers", "without"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", SEEDS)
def test_they_are_in_groups_of_epochs_as_well(rig: Rig, seed: int, barriers: bool, protocol: EpochProtocol) -> None:
    grouped = rig.having(lanes=1 + seed % 2 * 2, consistency=Consistency.EPOCH, epoch_protocol=protocol)
    require_equal_after(grouped, seed, runs=3, barriers=barriers)
    assert rig.rows("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()") == []
    assert rig.rows("SELECT count(*) FROM pg_class WHERE relname ~ '^s_' AND relkind = 'r'") == [(0,)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("consistency", "protocol"),
    [
        pytest.param(Consistency.CHANNEL, EpochProtocol.AUTO, marks=pytest.mark.long),
        pytest.param(Consistency.EPOCH, EpochProtocol.LEADER_MERGE, marks=GATED),
        pytest.param(Consistency.EPOCH, EpochProtocol.TWO_PHASE, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_they_are_through_spark_as_well(
    rig: Rig,
    seed: int,
    consistency: Consistency,
    protocol: EpochProtocol,
    spark_server: ServerLease,
    spark_session_id: str,
) -> None:
    through_spark = replace(
        rig.having(lanes=2, consistency=consistency, epoch_protocol=protocol),
        stage=lambda opened: open_stage(
            access=ConnectAccess(url=spark_server.url, session_id=spark_session_id),
            config=rig.config,
            target=rig.target,
        ),
    )
    require_equal_after(through_spark, seed, runs=1, barriers=False)


def require_equal_after(rig: Rig, seed: int, *, runs: int, barriers: bool) -> None:
    """Most of a history with barriers is replayed; one without brings channels into each other's way."""
    make_tables(rig)
    rig.prepare()
    install(rig.source_dsn)
    with psycopg.connect(rig.source_dsn) as connection:
        writer = Writer(connection, seed, barriers=barriers)
        for _ in range(runs):
            for _ in range(120):
                writer.transaction()
            rig.run()
            comparison = rig.comparison()
            assert comparison.equal, [table for table in comparison.tables if not table.equal]
    assert len(comparison.tables) == 24
    assert sum(bool(table.source_rows) for table in comparison.tables) >= 18
    for table in comparison.tables:
        assert copied(rig.source_dsn, table.name, rig.source_dsn) == copied(
            rig.target_dsn, table.name, rig.source_dsn
        ), table.name


def copied(dsn: str, name: str, source_dsn: str) -> list[bytes]:
    """A table's own rows as COPY writes them, sorted, with the source's columns."""
    schema, _, table = name.partition(".")
    with psycopg.connect(source_dsn) as source:
        columns = source.execute(
            "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
            " WHERE attrelid = format('%%I.%%I', %s::text, %s::text)::regclass AND attnum > 0 AND NOT attisdropped",
            [schema, table],
        ).fetchone()
    with psycopg.connect(dsn, options="-c timezone=UTC -c search_path=") as connection:
        found = connection.execute(
            "SELECT CASE relkind WHEN 'p' THEN '' ELSE 'ONLY ' END || oid::regclass FROM pg_class"
            " WHERE oid = format('%%I.%%I', %s::text, %s::text)::regclass",
            [schema, table],
        ).fetchone()
        assert columns is not None
        assert found is not None
        with connection.cursor().copy(f"COPY (SELECT {columns[0]} FROM {found[0]}) TO STDOUT") as copy:  # type: ignore[arg-type]
            return sorted(bytes(line) for line in b"".join(copy).splitlines())
