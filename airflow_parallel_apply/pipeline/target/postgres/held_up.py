"""Tells for whose locks a pipeline's sessions wait: `held_up`."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.target.postgres.naming import ALL_CHANNELS, idle_session
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


def held_up(session: Session) -> tuple[Finding, ...]:
    """See `Target.held_up`."""
    with session.errors("read locks"):
        names = {"prefix": idle_session(session.pipeline)}
        found = session.connection().execute(statement("session", "held_up"), names).fetchall()
    return tuple(_finding(*row) for row in found)


def _finding(
    name: str, lock: str, holder: int, role: str | None, application: str | None, state: str | None, seconds: int | None
) -> Finding:
    if not holder:
        held = "a prepared transaction"
        note = (
            "SELECT gid, prepared FROM pg_prepared_xacts lists those. One whose gid begins with pa: is a pipeline's "
            "branch: leave it to that pipeline's next run, or to parallel-apply recover. End another one with COMMIT "
            "PREPARED or ROLLBACK PREPARED"
        )
    else:
        words = [application, state, None if seconds is None else f"for {seconds} s"]
        told = ", ".join(word for word in words if word)
        # One that has ended meanwhile has none.
        held = f"session {holder}" + (f" of role {role}" if role else "") + (f" ({told})" if told else "")
        note = f"SELECT pg_terminate_backend({holder}) ends it"
    return new_finding(
        Side.TARGET,
        "locks",
        f"{_waiting(name)} waits for {lock}, which {held} has locked",
        severity=Severity.WARNING,
        note=f"{note}, and the run goes on by itself.",
    )


def _waiting(name: str) -> str:
    """The part of the pipeline that a session of this name is for."""
    scope = (name.split(":")[2:3] or [""])[0].rpartition("x")[2]
    if scope == ALL_CHANNELS:
        return "a commit of all channels"
    return f"channel {scope}" if scope else "a session of the pipeline"
