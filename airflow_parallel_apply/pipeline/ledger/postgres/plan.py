"""The plan: the planner's epochs, appended under the lock of the pipeline's row."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from airflow_parallel_apply.pipeline.ledger.postgres.lease import lock_pipeline, require_owner
from airflow_parallel_apply.pipeline.ledger.postgres.recopied import knows_recopied
from airflow_parallel_apply.pipeline.ledger.postgres.statements import ledger_sql
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind, Reason, Unit
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.target.postgres.positions.recopied import write_recopied
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.protocol import Recopied


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
        low_seqno: int,
        generation: int | None,
        recopied: frozenset[str],
    ) -> bool:
        with self._session.transaction("plan") as connection:
            row = lock_pipeline(connection, self._session)
            if row is None:
                return False
            require_owner(row, generation, so="and plans it alone")
            if row["routing_digest"] != routing_digest:
                return False
            if max(self._number(connection, "planned_seqno"), low_seqno) != after_seqno:
                return False
            if not knows_recopied(connection, self._session, recopied):
                return False
            # One statement: with `executemany`, which pipelines, a process that stops in it never counts as idle.
            rows = Jsonb([self._row(epoch) for epoch in epochs])
            connection.execute(ledger_sql("plan", "add"), {"pipeline": self._session.pipeline, "epochs": rows})
        return True

    def epochs(self, *, after_number: int, above_seqno: int, limit: int | None) -> tuple[Epoch, ...]:
        with self._session.errors("read plan"):
            rows = self._session.connection().execute(
                ledger_sql("plan", "read"),
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
                    end_offset=end_offset,
                    inserts=None if inserts is None else tuple(inserts),
                    end_time=end_time,
                )
                for number, first_seqno, last_seqno, kind, reason, counts, sizes, end_offset, inserts, end_time in rows
            )

    def is_planned(self, unit: Unit) -> bool:
        if unit.epoch is None:
            return True
        names = {"pipeline": self._session.pipeline, "number": unit.epoch, "last_seqno": unit.last_seqno}
        with self._session.errors("read plan"):
            found = self._session.connection().execute(ledger_sql("plan", "is_planned"), names)
            return found.fetchone() is not None

    def cut(self, seqno: int | None, positions: Sequence[Position], generation: int) -> None:
        with self._session.transaction("plan") as connection:
            row = lock_pipeline(connection, self._session)
            require_owner(row or {"generation": None}, generation, so="and plans it alone")
            if positions:
                names = {
                    "pipeline": self._session.pipeline,
                    "seqno": seqno,
                    "lowest": low_watermark(positions),
                    "highest": max(position.seqno for position in positions),
                    "positions": [position.seqno for position in positions],
                }
                connection.execute(ledger_sql("plan", "cut_at_positions"), names)
                connection.execute(ledger_sql("plan", "cut"), names)

    def channel_rows(self, positions: Sequence[Position]) -> tuple[tuple[int, int], ...]:
        names = {"pipeline": self._session.pipeline, "seqnos": [position.seqno for position in positions]}
        with self._session.errors("read plan"):
            rows = self._session.connection().execute(ledger_sql("plan", "channel_rows"), names)
            return tuple((int(committed), int(waiting)) for committed, waiting in rows)

    def purge(self, through_seqno: int) -> int:
        with self._session.transaction("purge plan", is_brief=False) as connection:
            names = {"pipeline": self._session.pipeline, "through_seqno": through_seqno}
            return connection.execute(ledger_sql("plan", "purge"), names).rowcount

    def note_recopied(self, tables: Sequence[Recopied], above_seqno: int) -> None:
        with self._session.transaction("plan") as connection:
            names = {"pipeline": self._session.pipeline, "seqno": above_seqno}
            connection.execute(ledger_sql("plan", "drop_above"), names)
            write_recopied(connection, self._session, tables)

    def _row(self, epoch: Epoch) -> dict[str, object]:
        return {
            "number": epoch.number,
            "first_seqno": epoch.first_seqno,
            "last_seqno": epoch.last_seqno,
            "kind": epoch.kind.value,
            "reason": epoch.reason.value,
            "rows": list(epoch.rows),
            "bytes": list(epoch.bytes_),
            "end_offset": epoch.end_offset,
            "inserts": None if epoch.inserts is None else list(epoch.inserts),
            "end_time": None if epoch.end_time is None else epoch.end_time.isoformat(),
        }

    def _number(self, connection: Connection, name: str, **names: int) -> int:
        row = connection.execute(ledger_sql("plan", name), {"pipeline": self._session.pipeline, **names}).fetchone()
        return int(row[0]) if row is not None else -1
