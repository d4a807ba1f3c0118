"""Tables that are copied anew: the lock that keeps runs out meanwhile, and what a plan has to know of them."""

from __future__ import annotations

from collections.abc import Set

from airflow_parallel_apply.pipeline.errors import LeaseBusy
from airflow_parallel_apply.pipeline.ledger.postgres.statements import ledger_sql
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session


def hold_recopy(session: Session) -> None:
    """See `Ledger.keep_runs_out`."""
    with session.errors("recopy"):
        query = ledger_sql("recopied", "hold")
        if session.connection().execute(query, {"pipeline": session.pipeline}).fetchone() != (True,):
            raise LeaseBusy(
                f"pipeline {session.pipeline} is being taken, routed or dropped, or its tables are being copied anew",
                hint="Wait for that to end, and run this again.",
            )


def require_no_recopy(connection: Connection, session: Session, generation: int) -> None:
    """In the transaction that takes the pipeline. `LeaseBusy`; psycopg's own."""
    found = connection.execute(ledger_sql("recopied", "is_free"), {"pipeline": session.pipeline})
    if found.fetchone() != (True,):
        raise LeaseBusy(
            f"tables of pipeline {session.pipeline} are being copied anew",
            hint="Wait for parallel-apply recopy to end.",
            generation=generation,
        )


def knows_recopied(connection: Connection, session: Session, known: Set[str]) -> bool:
    """True if the ledger knows no other copies than these. Errors: psycopg's own."""
    names = {"pipeline": session.pipeline, "known": sorted(known)}
    return connection.execute(ledger_sql("recopied", "unknown"), names).fetchone() == (False,)
