"""The plan: the planner's epochs, appended under the lock of the pipeline's row."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from airflow_parallel_apply.pipeline.epoch import Epoch, EpochKind, Reason
from airflow_parallel_apply.pipeline.target.postgres.positions import require_owner
from airflow_parallel_apply.pipeline.target.postgres.recopied import knows_recopied
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session


class PlanTable:
    """One pipeline's rows in `epoch`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def planned_seqno(self) -> int:
        with self._session.errors("read plan"):
            return self._number(self._session.connection(), "planned_seqno")

    def next_number(self) -> int:
        with self._session.errors("read plan"):
            return self._number(self._session.connection(), "next_number")

    def last_at(self, seqno: int) -> int:
        with self._session.errors("read plan"):
            return self._number(self._session.connection(), "last_at", seqno=seqno)

    def add(
        self,
        epochs: Sequence[Epoch],
        *,
        routing_digest: str,
        after_seqno: int,
        generation: int | None,
        recopied: frozenset[str],
    ) -> bool:
        with self._session.transaction("plan") as connection:
            names = {"pipeline": self._session.pipeline}
            row = connection.cursor(row_factory=dict_row).execute(self._session.sql("fence", "lock"), names).fetchone()
            if row is None:
                return False
            require_owner(row, generation, so="and plans it alone")
            if row["routing_digest"] != routing_digest:
                return False
            if self._number(connection, "planned_seqno") != after_seqno:
                return False
            if not knows_recopied(connection, self._session, recopied):
                return False
            # One statement: with `executemany`, which pipelines, a process that stops in it never counts as idle.
            rows = Jsonb([self._row(epoch) for epoch in epochs])
            connection.execute(self._session.sql("plan", "add"), {**names, "epochs": rows})
        return True

    def epochs(self, *, after_number: int, above_seqno: int, limit: int | None) -> tuple[Epoch, ...]:
        with self._session.errors("read plan"):
            rows = self._session.connection().execute(
                self._session.sql("plan", "read"),
                {
                    "pipeline": self._session.pipeline,
                    "after_number": after_number,
                    "above_seqno": above_seqno,
                    "limit": limit,
                },
            )
            return tuple(
                Epoch(
                    number=number,
                    first_seqno=first_seqno,
                    last_seqno=last_seqno,
                    kind=EpochKind(kind),
                    reason=Reason(reason),
                    rows=tuple(counts),
                    bytes_=tuple(sizes),
                )
                for number, first_seqno, last_seqno, kind, reason, counts, sizes in rows
            )

    def cut(self, seqno: int, generation: int) -> None:
        with self._session.transaction("plan") as connection:
            names = {"pipeline": self._session.pipeline, "seqno": seqno}
            row = connection.cursor(row_factory=dict_row).execute(self._session.sql("fence", "lock"), names).fetchone()
            require_owner(row or {"generation": None}, generation, so="and plans it alone")
            connection.execute(self._session.sql("plan", "cut"), names)

    def channel_rows(self) -> tuple[tuple[int, int], ...]:
        with self._session.errors("read plan"):
            rows = self._session.connection().execute(
                self._session.sql("plan", "channel_rows"), {"pipeline": self._session.pipeline}
            )
            return tuple((int(committed), int(waiting)) for committed, waiting in rows)

    def purge(self, through_seqno: int) -> int:
        with self._session.transaction("purge plan", is_brief=False) as connection:
            names = {"pipeline": self._session.pipeline, "through_seqno": through_seqno}
            return connection.execute(self._session.sql("plan", "purge"), names).rowcount

    def _row(self, epoch: Epoch) -> dict[str, object]:
        return {
            "number": epoch.number,
            "first_seqno": epoch.first_seqno,
            "last_seqno": epoch.last_seqno,
            "kind": epoch.kind.value,
            "reason": epoch.reason.value,
            "rows": list(epoch.rows),
            "bytes": list(epoch.bytes_),
        }

    def _number(self, connection: Connection, name: str, **names: int) -> int:
        row = connection.execute(
            self._session.sql("plan", name), {"pipeline": self._session.pipeline, **names}
        ).fetchone()
        return int(row[0]) if row is not None else -1
