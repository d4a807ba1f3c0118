"""The fence: who owns a pipeline, under which generation; and how it is routed.

Every position bears the generation of the owner, so that the conditional move at the end of each commit fails for
a former one: `acquire` writes the new generation into all of them before it returns. It ends the former holders'
sessions first, since one that stands still between its merge and its commit would hold the position's lock for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    FenceBusy,
    OwnershipLost,
    PlanError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.event import NO_SEQNO
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.target.postgres.positions import generation_lost, read_positions, require_owner
from airflow_parallel_apply.pipeline.target.postgres.recopied import require_no_recopy
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.protocol import FenceState

_LOCK_TRIES: Final = 5


class Fence:
    """One pipeline's row in `pipeline`, and its rows in `run`. Leases are measured by the target's clock."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def state(self) -> FenceState | None:
        with self._session.errors("fence"):
            cursor = self._session.connection().cursor(row_factory=class_row(FenceState))
            return cursor.execute(self._session.sql("fence", "read"), self._names()).fetchone()

    def acquire(self, *, log_id: str, owner: str, lease: timedelta, queue: str, above: int = 0) -> FenceState:
        with self._session.transaction("acquire") as connection:
            connection.execute(self._session.sql("fence", "register"), self._names(log_id=log_id))
            row = self._lock(connection, log_id)
            require_no_recopy(connection, self._session, row["generation"])
            if row["is_owned"] and row["owner"] != owner:
                raise FenceBusy(
                    f"run {row['owner']} owns the pipeline until {row['lease_until']:%H:%M:%S} UTC",
                    hint="Wait for it, or stop it.",
                    generation=row["generation"],
                )
            generation = max(row["generation"], above) + 1
            names = self._names(owner=owner, lease=lease, queue=queue, generation=generation)
            connection.execute(self._session.sql("fence", "acquire"), names)
        self._own_positions(generation)
        found = self.state()
        if found is None or found.generation != generation:
            raise OwnershipLost("another run took the pipeline over", op="acquire", pipeline=self._session.pipeline)
        return found

    def renew(self, generation: int, lease: timedelta) -> None:
        with self._session.transaction("renew fence") as connection:
            names = self._names(generation=generation, lease=lease)
            self._require_one(connection.execute(self._session.sql("fence", "renew"), names), generation)

    def release(self, generation: int, clean_stop_seqno: int | None) -> None:
        with self._session.transaction("release fence") as connection:
            names = self._names(generation=generation, clean_stop_seqno=clean_stop_seqno)
            self._require_one(connection.execute(self._session.sql("fence", "release"), names), generation)

    def routing(self) -> Routing:
        with self._session.errors("read routing"):
            row = self._session.connection().execute(self._session.sql("fence", "routing"), self._names()).fetchone()
        if row is None or not row[1]:
            raise ConfigurationError(
                f"pipeline {self._session.pipeline} was never routed", hint="Run it from its task capture on."
            )
        routing, channels = row
        # What an earlier release routed says no more than this.
        return Routing(channels=channels) if routing is None else Routing.from_json(routing)

    def route(self, generation: int | None, *, log_id: str, routing: Routing) -> None:
        with self._session.transaction("route") as connection:
            connection.execute(self._session.sql("fence", "register"), self._names(log_id=log_id))
            row = self._lock(connection, log_id)
            if row["routing_digest"] == routing.digest:
                return
            require_owner(row, generation, so="its routing cannot change now")
            # Lanes of a run that is over may have slept through its end: what they planned by is not valid any more.
            # Those of the caller's own generation start later than this.
            raised = row["generation"] + (generation is None and bool(row["routing_digest"]))
            self._session.end_holders(None, but_token="")
            positions = read_positions(connection, self._session, lock=True)
            if not all_equal(positions):
                raise PlanError(
                    f"the routing changed (channels {row['channels']} to {routing.channels}, {routing.partitioner}) "
                    f"while the channels stand at {_listed(positions)}",
                    hint="Run with the former parameters until all channels stop at the same seqno, then change them.",
                )
            seqno = low_watermark(positions) if positions else NO_SEQNO
            names = self._names(
                routing_digest=routing.digest,
                routing=Jsonb(routing.to_json()),
                channels=routing.channels,
                seqno=seqno,
                generation=raised,
            )
            for name in ("drop_positions", "make_positions", "drop_plan", "set_routing"):
                connection.execute(self._session.sql("fence", name), names)

    def _own_positions(self, generation: int) -> None:
        """Bounded: each try ends the sessions that could hold a position's lock."""
        for _ in range(_LOCK_TRIES):
            with self._session.errors("acquire"):
                self._session.end_holders(None, but_token="")
                try:
                    with self._session.connection().transaction():
                        self._session.connection().execute(self._session.sql("session", "brief"))
                        self._session.connection().execute("SET LOCAL lock_timeout = '2s'")
                        self._session.connection().execute(
                            self._session.sql("fence", "own_positions"), self._names(generation=generation)
                        )
                except psycopg.errors.LockNotAvailable:
                    continue
                return
        raise Unavailable("another session holds the positions' locks", op="acquire", pipeline=self._session.pipeline)

    def _lock(self, connection: Connection, log_id: str) -> dict[str, Any]:
        cursor = connection.cursor(row_factory=dict_row)
        row = cursor.execute(self._session.sql("fence", "lock"), self._names()).fetchone()
        if row is None:
            raise OwnershipLost("the pipeline was removed from the target")
        if row["log_id"] != log_id:
            raise ConfigurationError(
                f"the target has applied log {row['log_id']} so far, this is log {log_id}",
                hint="Use the pipeline's own log_url, or another pipeline name for another log.",
            )
        return row

    def _require_one(self, cursor: psycopg.Cursor[tuple[Any, ...]], generation: int) -> None:
        if cursor.rowcount != 1:
            raise generation_lost(generation)

    def _names(self, **names: object) -> dict[str, object]:
        return {"pipeline": self._session.pipeline, **names}


def _listed(positions: Sequence[Position]) -> str:
    return ", ".join(f"{position.channel}: {position.seqno}" for position in positions)
