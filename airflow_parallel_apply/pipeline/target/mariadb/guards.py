"""Finds what would make of applied rows something else than was sent, though the server takes them without a word.

A table is looked at before a run, and again in each unit's transaction: by then nobody can alter it any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding
from airflow_parallel_apply.pipeline.target.mariadb.quoting import shown
from airflow_parallel_apply.pipeline.target.mariadb.rights import account, sees_triggers, trigger_grant
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetColumn, TargetTable

_VERSIONED: Final = "SYSTEM VERSIONED"
_VIEWS: Final = ("VIEW", "SYSTEM VIEW")
_finding: Final = partial(new_finding, Side.TARGET)


def guard_findings(session: Session, table: TargetTable) -> Iterator[Finding]:
    """Find an engine without transactions, triggers, and columns that are computed otherwise than at the source, each
    with the statement that mends it. Errors: the driver's own.
    """
    yield from _engine_findings(table)
    for column in table.unsent:
        yield from _computed_findings(session, table, column)
    yield from _trigger_findings(session, table)


def _engine_findings(table: TargetTable) -> Iterator[Finding]:
    where, name = table.relation.name, shown(table.database, table.name)
    if table.engine == _VERSIONED:
        yield _finding(
            where,
            f"{where} keeps its former rows at the target (system versioning), which then are in its unique indexes",
            f"ALTER TABLE {name} DROP SYSTEM VERSIONING",
        )
    elif table.engine.lower() != "innodb":
        yield _finding(
            where,
            f"{where} is {table.engine} at the target: rows and positions would not be committed together",
            *((f"ALTER TABLE {name} ENGINE = InnoDB",) if table.engine not in _VIEWS else ()),
        )


def _computed_findings(session: Session, table: TargetTable, found: TargetColumn) -> Iterator[Finding]:
    """A column that the source computes, and does not send. Whether the expressions of two servers of different makes
    have the same values, their texts do not tell: that is for somebody to say who knows both.
    """
    where, column = table.relation.name, f"{table.relation.name}.{found.name}"
    if not found.is_generated:
        what = "is computed by the source, which does not send it: it would be empty here"
        note = "Or drop it, and make it anew GENERATED ALWAYS AS (…), in this server's words."
    elif column in session.address.computed_alike:
        return
    else:
        there = dict(table.relation.expressions).get(found.name, "another expression")
        what = f"is computed by both sides, here as {found.expression}, at the source as {there}"
        note = (
            "Or, if both have the same values in every row, which `parallel-apply compare` shows of those that are "
            f"there, say so in the connection: computed_alike={column}."
        )
    change = f"ALTER TABLE {shown(table.database, table.name)} DROP COLUMN {shown(found.name)}"
    yield replace(_finding(where, f"{where}: column {found.name} {what}", change, note=note), column=found.name)


def _trigger_findings(session: Session, table: TargetTable) -> Iterator[Finding]:
    triggers = session.rows(
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS"
        " WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s",
        [table.database, table.name],
    )
    for (trigger,) in triggers:
        yield _finding(
            table.relation.name,
            f"trigger {trigger} acts on rows of {table.relation.name} that are applied at the target",
            f"DROP TRIGGER {shown(table.database, trigger)}",
            note="The source's own trigger has acted already.",
        )
    if not triggers and not sees_triggers(session, table.database, table.name):
        yield _finding(
            table.database,
            f"{account(session)} may not see triggers of tables in {table.database}, which would act on applied rows",
            trigger_grant(session, table.database),
        )
