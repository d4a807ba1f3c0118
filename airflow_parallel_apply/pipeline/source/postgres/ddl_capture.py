"""Installs, at a source, what lets DDL messages prove who sent them: `ddl_capture.sql`.

`pg_logical_emit_message` is open to every login, and what it writes reaches every slot of the database. A pipeline with
ddl=apply runs the text of a message as the target's role; so a message counts only if `parallel_apply.send_ddl` wrote
it, and the function's owner grants that to whoever may send.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.postgres.quoting import quoted
from airflow_parallel_apply.postgres.settings import EXACT

_NEEDED: Final = frozenset(
    ("function parallel_apply.ddl_signature", "function parallel_apply.ddl_is_signed", "table parallel_apply.ddl_key")
)
"""Objects on which a message's signature rests."""

_SCHEMA: Final = "schema parallel_apply"

_FORMER: Final = {
    "send_ddl": (
        "send_ddl",
        "its messages do not tell the search_path that they were sent under, so a name without a schema may mean "
        "another table at the target",
        "until then name schemas in full in what is sent",
    ),
    "settings": (
        "send_ddl",
        "its messages do not tell how the session prints bytes and floating-point numbers (bytea_output, "
        "extra_float_digits), so what a statement makes texts of them may differ at the target",
        "until then do not change these settings in a session that sends DDL",
    ),
    "subtransactions": (
        "send_ddl",
        "its messages do not tell the session's subtransactions, so what a statement does behind a savepoint, or in a "
        "block with EXCEPTION, may count as not sent",
        "until then send DDL that alters types, labels, attributes or inheritance outside of these",
    ),
    "strings": (
        "send_ddl",
        "its messages lack settings of the session, as the time zone and date style under which bounds of partitions "
        "and conditions are read, or whether strings are read by the SQL standard (standard_conforming_strings)",
        "until then send DDL from sessions with the target's settings",
    ),
    "capture_rewrite": (
        "capture_rewrite",
        "it takes a USING for none in an extension's script, in a session without standard_conforming_strings, or in "
        "capital letters under a Turkish or Azerbaijani locale, so older rows may differ",
        "until then `parallel-apply recopy` a table whose column such a statement has given another type",
    ),
    "sighting": (
        "sighting",
        "what it tells of older rows in new columns is printed under the settings of the session that adds them, so it "
        "proves nothing",
        "until then more migrations need `parallel-apply recopy`",
    ),
    "names": (
        "capture_ddl",
        "it does not tell a table's name, so DDL that is sent behind a rename which was not may meet another table",
        "until then send the renames, too",
    ),
}
"""Functions of earlier versions: each one's name, what it lacks, and what helps until it is renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlObject:
    """A function or table of `ddl_capture.sql` that is there, or the schema in which they are."""

    name: str
    owner: str
    is_trusted: bool
    is_ours: bool


def ddl_objects(connection: psycopg.Connection[Any]) -> tuple[DdlObject, ...]:
    """Those that are there, by name."""
    return tuple(
        DdlObject(name=name, owner=owner, is_trusted=is_trusted, is_ours=is_ours)
        for name, owner, is_trusted, is_ours in connection.execute(statement("ddl_objects")).fetchall()
    )


def can_verify(found: Sequence[DdlObject]) -> bool:
    """True if all of it is there, and belongs to roles that may decide what a target runs."""
    return {one.name for one in found} >= _NEEDED and all(one.is_trusted for one in found)


def captured_commands(connection: psycopg.Connection[Any]) -> Collection[str]:
    """The kinds of commands of which each is sent as it changes a followed table's definition, or name, in a way that
    can be verified.
    """
    found = connection.execute(
        "SELECT e.evttags FROM pg_catalog.pg_event_trigger e "
        "WHERE e.evtname = 'parallel_apply_capture_ddl' AND e.evtenabled = 'A' "
        "AND e.evtfoid = to_regprocedure('parallel_apply.capture_ddl()')"
    ).fetchone()
    return found[0] if found and can_verify(ddl_objects(connection)) else ()


def capture_findings(connection: psycopg.Connection[Any], place: str, ddl: DdlPolicy) -> tuple[Finding, ...]:
    """Find what an earlier version installed that tells less, of what a pipeline under this policy goes by. Errors:
    psycopg's own.
    """
    found = connection.execute(
        "SELECT CASE WHEN p.proname = 'capture_ddl' THEN 'names' "
        "WHEN p.pronargs < 2 THEN p.proname::text WHEN p.prosrc !~ 'bytea_output' THEN 'settings' "
        "WHEN p.prosrc !~ 'subtransactions' THEN 'subtransactions' ELSE 'strings' END "
        "FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace "
        "WHERE n.nspname = 'parallel_apply' "
        "AND (p.proname = 'send_ddl' AND (p.prosrc !~ 'standard_conforming_strings' OR p.prosrc ~ 'type.default') "
        "OR p.proname = 'capture_rewrite' AND p.prosrc !~ 'COLLATE' "
        "OR p.proname = 'capture_ddl' AND p.prosrc !~ 'pg_namespace' "
        "OR p.proname = 'sighting' AND NOT 'extra_float_digits=3' = ANY (p.proconfig)) ORDER BY 1"
    ).fetchall()
    of_trigger = ("capture_rewrite", "sighting")
    wanted = {DdlPolicy.APPLY: _FORMER.keys(), DdlPolicy.REFUSE: of_trigger, DdlPolicy.SKIP: ()}[ddl]
    return tuple(_former(name, place) for (name,) in found if name in wanted)


def _former(what_is_former: str, place: str) -> Finding:
    name, what, until = _FORMER[what_is_former]
    note = f"Run `parallel-apply install-ddl-capture` again for {place}; {until}."
    name = f"parallel_apply.{name}"
    return new_finding(
        Side.SOURCE, name, f"{name} is an earlier version's: {what}", severity=Severity.WARNING, note=note
    )


def install_ddl_capture(session: Session, *, grant_to: Sequence[str] = ()) -> tuple[str, ...]:
    """Make or renew it, and let roles send DDL; says what was done. Keys that are there stay.

    Errors: `ConfigurationError` where a part of it belongs to another role, which could read what we sign with, or the
    schema to one that is not trusted, which could replace our functions; the drivers' own.
    """
    connection = session.catalog()
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('parallel_apply ddl capture', 0))")
        _require_own(session, ddl_objects(connection))
        connection.execute(statement("ddl_capture"))
        is_superuser = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        captures = is_superuser is not None and is_superuser[0]
        if captures:
            connection.execute(_trigger().encode())
        for role in grant_to:
            connection.execute(
                sql.SQL("GRANT EXECUTE ON FUNCTION parallel_apply.send_ddl(text, name[]) TO {}").format(
                    sql.Identifier(role)
                )
            )
    return (
        f"Installed parallel_apply.send_ddl at {session.place}: what it sends counts as DDL of this database.",
        "Changes of followed tables' definitions are captured as they are made."
        if captures
        else "Changes of followed tables' definitions are not captured as they are made: it takes an event trigger, "
        "which only a superuser may make.",
        *(f"Role {role} may send." for role in grant_to),
    )


def _require_own(session: Session, found: Sequence[DdlObject]) -> None:
    for one in found:
        is_schema = one.name == _SCHEMA
        if one.is_ours or (is_schema and one.is_trusted):
            continue
        hint = f"Install as {one.owner} if you trust that role; else drop what it made and try again."
        if is_schema:
            hint = (
                "A schema's owner may replace what is in it. Run ALTER SCHEMA parallel_apply OWNER TO "
                f"CURRENT_USER; and, where pipelines into this database apply as {one.owner}, GRANT CREATE, USAGE ON "
                f"SCHEMA parallel_apply TO {quoted(one.owner)}. Then install again."
            )
        raise ConfigurationError(
            f"the source {session.place} has {one.name} already, and it belongs to {one.owner}",
            op="install-ddl-capture",
            hint=hint,
        )


def _trigger() -> str:
    """The event trigger, with the very statements that capture asks the catalog with."""
    shape = statement("shape").replace("%(oids)s::oid[]", "ARRAY[followed]")
    fills = statement("fills").replace("= ANY (%(numbers)s::int[])", "> 0").replace("%(oid)s", "followed")
    settings = sql.SQL(" ").join(
        sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
        for name, value in EXACT.items()
        if name != "client_encoding"
    )
    text = statement("ddl_trigger").replace("{shape}", shape).replace("{fills}", fills)
    return text.replace("{settings}", settings.as_string()) + statement("removal_trigger")
