"""The peer: a subscription of PostgreSQL's own, catching up from a slot that was made before the history."""

from __future__ import annotations

import time
from time import monotonic
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import TargetError
from benchmarks.world import PUBLICATION, Database, World

_POLL_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 900.0


def measure_native(world: World, database: Database, slot: str) -> float:
    """Seconds from the subscription's start until the history's last transaction is committed at the target."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "CREATE SUBSCRIPTION native CONNECTION {source} PUBLICATION {publication}"
                " WITH (slot_name = {slot}, create_slot = false, copy_data = false, enabled = false{options})"
            ).format(
                options=sql.SQL(world.history.native),  # our own text
                source=sql.Literal(world.source.url),
                publication=sql.Identifier(PUBLICATION),
                slot=sql.Literal(slot),
            )
        )
        origin = _one(connection, "SELECT 'pg_' || oid FROM pg_subscription WHERE subname = 'native'")
        began = monotonic()
        connection.execute("ALTER SUBSCRIPTION native ENABLE")
        try:
            # Of a transaction that is committed at the target, the origin's progress is its end in the source's WAL.
            progress = f"SELECT coalesce(pg_replication_origin_progress('{origin}', false) - '0/0', 0)::bigint"
            while int(str(_one(connection, progress))) < world.end_offset:
                if monotonic() - began > _PATIENCE_SECONDS:
                    raise TargetError("PostgreSQL's own replication did not catch up", op="bench")
                time.sleep(_POLL_SECONDS)
            return monotonic() - began
        finally:
            for statement in ("DISABLE", "SET (slot_name = NONE)"):
                connection.execute(sql.SQL("ALTER SUBSCRIPTION native {}").format(sql.SQL(statement)))
            connection.execute("DROP SUBSCRIPTION native")


def _one(connection: psycopg.Connection, query: str) -> object:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None
