"""Checks what stands in a pipeline's way at a PostgreSQL source, each with the SQL that fixes it. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, general_findings, new_finding
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import SourceTable, sends_generated
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.postgres.arrays import numbers
from airflow_parallel_apply.postgres.pooler import POOLER_FOUND, shares_sessions
from airflow_parallel_apply.postgres.quoting import quoted
from airflow_parallel_apply.postgres.settings import POOLER_HINT

OLDEST_VERSION: Final = 14
NEWEST_VERSION: Final = 18
"""The newest version that this release was tested with."""
_VERSIONS: Final = 10_000
"""Between one major version and the next, in `server_version_num`."""

_finding: Final = partial(new_finding, Side.SOURCE)


def server_findings(connection: psycopg.Connection[Any], slot: str, *, is_first_run: bool) -> tuple[Finding, ...]:
    """Version, settings, what is left of slots and senders, and the role's rights. Errors: psycopg's own.

    `is_first_run`: publication and slot are still to be made.
    """
    server = connection.cursor(row_factory=dict_row).execute(statement("check_server"), {"slot": slot}).fetchone()
    return () if server is None else tuple(_server_findings(server, is_first_run=is_first_run))


def pooler_findings(session: Session) -> tuple[Finding, ...]:
    """Find a pooler that gives a session's settings, locks and snapshots to others. Errors: psycopg's own."""
    if not shares_sessions(session.catalog(), session.another):
        return ()
    return (_finding("connection", POOLER_FOUND, note=POOLER_HINT),)


def table_findings(
    connection: psycopg.Connection[Any],
    publication: str,
    followed: Sequence[SourceTable],
    patterns: TablePatterns,
    role: str,
    *,
    is_first_run: bool = False,
) -> tuple[Finding, ...]:
    """Ownership, and how the server will tell a table's rows apart. Errors: psycopg's own.

    `is_first_run`: a pipeline begins with tables. Later all of them may be dropped, or have names that do not match,
    which the publication shows.
    """
    if not followed:
        return (
            _finding(
                ", ".join(patterns.include),
                f"the database has no table that matches {', '.join(patterns.include)}",
                severity=Severity.ERROR if is_first_run else Severity.WARNING,
                note="Patterns are schema.table with * and ?. Views, unlogged and foreign tables are not followed.",
            ),
        )
    by_oid = {table.oid: table for table in followed}
    are_sent = sends_generated(connection, publication, followed)
    cursor = connection.cursor(row_factory=dict_row)
    cursor.execute(statement("check_tables"), {"oids": numbers(by_oid)})
    found = [
        finding
        for row in cursor.fetchall()
        for finding in (
            *(_root_findings(row, by_oid[row["root"]], role) if row["is_root"] else ()),
            *_unsent_findings(row, by_oid[row["root"]]),
            *_unwatched_findings(row, by_oid[row["root"]], role),
            *(() if row["is_partitioned"] or row["is_foreign"] else _identity_findings(row)),
            *(() if are_sent or row["is_foreign"] else _computed_key_findings(row)),
            *_computation_findings(row, by_oid[row["root"]]),
        )
    ]
    cursor.execute(statement("check_names"), {"oids": numbers(by_oid)})
    return (*namesakes(followed), *found, *(_name_finding(row, by_oid[row["root"]]) for row in cursor))


def namesakes(followed: Sequence[SourceTable]) -> Iterator[Finding]:
    """Find tables of one name: a point within the schema's or the table's makes them so, and logs know tables by it."""
    count = Counter(table.name for table in followed)
    for table in followed:
        if count[table.name] > 1:
            yield _finding(
                table.name,
                f"{quoted(table.schema, table.table)} and another followed table are both {table.name}",
                note="Rename one of the two, or its schema, so that they differ without the quotes.",
            )


def _server_findings(server: Mapping[str, Any], *, is_first_run: bool) -> Iterator[Finding]:
    role, database = server["role"], server["database"]
    yield from general_findings(
        Side.SOURCE,
        "PostgreSQL",
        server["version"] // _VERSIONS,
        is_standby=server["is_standby"],
        oldest=OLDEST_VERSION,
        newest=NEWEST_VERSION,
    )
    if server["wal_level"] != "logical":
        yield _finding(
            "wal_level",
            f"the server has wal_level={server['wal_level']}",
            "ALTER SYSTEM SET wal_level = 'logical'",
            note="As a superuser; then restart the server (on Amazon RDS: rds.logical_replication = 1).",
        )
    if server["encoding"] == "SQL_ASCII":
        yield _finding(
            "encoding",
            "the database has the encoding SQL_ASCII, so its texts have no defined characters",
            note="Use a database with the encoding UTF8.",
        )
    if not server["can_replicate"]:
        fix = (
            f"GRANT rds_replication TO {quoted(role)}" if server["is_rds"] else f"ALTER ROLE {quoted(role)} REPLICATION"
        )
        yield _finding(
            f"role {role}", f"user {role} has no right to replicate", fix, note="As a role that may grant it."
        )
    if not server["has_slot"]:
        yield from _left("max_replication_slots", server["slots"], server["max_slots"], "replication slots")
        yield from _left("max_wal_senders", server["senders"], server["max_senders"], "WAL senders")
    if server["closed_function"] is not None:
        yield _finding(
            server["closed_function"],
            f"user {role} may not write logical messages: WAL that holds nothing of the pipeline is kept longer, and a "
            "partition that is truncated alone, or a table that is altered or renamed, may stop the run",
            f"GRANT EXECUTE ON FUNCTION {server['closed_function']} TO {quoted(role)}",
            severity=Severity.WARNING,
            note="As a superuser.",
        )
    if server["idle_timeout"] not in ("0", "0s", "0min"):
        yield _finding(
            "idle_replication_slot_timeout",
            f"the server gives up slots that nobody has read for {server['idle_timeout']}, as between two runs",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0",
            "SELECT pg_reload_conf()",
            severity=Severity.WARNING,
            note="As a superuser; or let runs come more often.",
        )
    if is_first_run and not server["can_create"]:
        yield _finding(
            f"database {database}",
            f"user {role} has no right to create a publication",
            f"GRANT CREATE ON DATABASE {quoted(database)} TO {quoted(role)}",
            note="As the database's owner.",
        )


def _left(setting: str, used: int, most: int, what: str) -> Iterator[Finding]:
    if used >= most:
        yield _finding(
            setting,
            f"the server has no {what} left: {used} of {most} are taken",
            f"ALTER SYSTEM SET {setting} = {used + 5}",
            note="As a superuser; then restart the server. Or drop what nobody uses: see pg_replication_slots.",
        )


def _root_findings(row: Mapping[str, Any], table: SourceTable, role: str) -> Iterator[Finding]:
    if not row["can_use_schema"]:
        yield _finding(
            table.name,
            f"user {role} may not use the schema of {table.name}",
            f"GRANT USAGE ON SCHEMA {quoted(table.schema)} TO {quoted(role)}",
        )
    if not table.is_owner and not table.is_published:
        yield _finding(
            table.name,
            f"user {role} does not own the table, so it cannot publish {table.name}",
            _owning(row, role),
            note="Or connect as the owner.",
        )
    if table.generated == "v":
        yield _finding(
            table.name,
            f"{table.name} has REPLICA IDENTITY FULL and virtual generated columns: once it is published, the source "
            "itself refuses every UPDATE and DELETE of it",
            note="Give it another replica identity, make the columns STORED, or leave the table out.",
        )
    if row["is_row_security_active"]:
        yield _finding(
            table.name,
            f"row security hides rows of {table.name} from user {role}",
            f"ALTER ROLE {quoted(role)} BYPASSRLS",
            note="As a superuser.",
        )


def _owning(row: Mapping[str, Any], role: str) -> str:
    """The command that lets the role do what only the table's owner may."""
    if row["is_owner_superuser"]:
        return f"ALTER TABLE {quoted(row['schema'], row['table'])} OWNER TO {quoted(role)}"
    return f"GRANT {quoted(row['owner'])} TO {quoted(role)}"


def _unwatched_findings(row: Mapping[str, Any], table: SourceTable, role: str) -> Iterator[Finding]:
    """Partitions that the second publication leaves out: see `truncations.py`."""
    if row["is_root"] or row["is_foreign"] or row["is_partitioned"] or row["is_owner"]:
        return
    part = f"{row['schema']}.{row['table']}"
    unread = "" if row["can_read"] else "a copy may not read it, "
    yield _finding(
        part,
        f"user {role} does not own the partition {part} of {table.name}: {unread}the source does not keep it from "
        "being made unlogged, and a run may stop after a command that rewrites it, as TRUNCATE or VACUUM FULL",
        _owning(row, role),
        severity=Severity.WARNING,
        note="Or connect as the owner.",
    )


def _unsent_findings(row: Mapping[str, Any], table: SourceTable) -> Iterator[Finding]:
    """Partitions whose changes are not in the WAL."""
    if not row["is_unlogged"] and not row["is_foreign"]:
        return
    name = quoted(row["schema"], row["table"])
    part = f"{row['schema']}.{row['table']}"
    if row["is_unlogged"]:
        yield _finding(
            table.name,
            f"the partition {part} of {table.name} is unlogged: no change of its rows is sent",
            f"ALTER TABLE {name} SET LOGGED",
            note="Its existing rows are copied with those of the others.",
        )
    if row["is_foreign"]:
        yield _finding(
            table.name,
            f"the partition {part} of {table.name} is a foreign table: no change of its rows is sent",
            f"ALTER TABLE {quoted(table.schema, table.table)} DETACH PARTITION {name}",
            note="Or leave the table out with an exclude pattern.",
        )


def _name_finding(row: Mapping[str, Any], table: SourceTable) -> Finding:
    text = "text[]" if row["is_array"] else "text"
    alter = f"ALTER TABLE {quoted(table.schema, table.table)} ALTER COLUMN {quoted(row['column'])} TYPE {text}"
    return _finding(
        table.name,
        f"{table.name} has the column {row['column']} as {row['type']}, whose values are names of objects: when one "
        "is renamed, older rows print another text, and no row is sent",
        *((alter,) if row["is_plain"] else ()),
        note="On both sides, if the target has the table; or keep the objects' numbers, as oid. Otherwise leave the "
        "table out.",
    )


def _computation_findings(row: Mapping[str, Any], table: SourceTable) -> Iterator[Finding]:
    """The log has one expression of a column, for all partitions."""
    for column, expression in row["computed_otherwise"] or ():
        part = f"{row['schema']}.{row['table']}"
        alter = f"ALTER TABLE {quoted(table.schema, table.table)} ALTER COLUMN"
        yield _finding(
            table.name,
            f"the partition {part} computes the column {column} by an expression of its own, so what the target is to "
            f"compute in {table.name} is not known",
            *((f"{alter} {quoted(column)} SET EXPRESSION AS ({expression})",) if expression is not None else ()),
            note=f"It gives the partition the expression of {table.name}. Or leave the table out."
            if expression is not None
            else f"Attach a partition that has the expression of {table.name}, or leave the table out.",
        )


def _computed_key_findings(row: Mapping[str, Any]) -> Iterator[Finding]:
    """Find a key of which a part is not sent, so that it tells no rows apart."""
    if row["computed_key"] is None:
        return
    name = f"{row['schema']}.{row['table']}"
    yield _finding(
        name,
        f"{name} has in its key the column {row['computed_key']}, which the source computes and does not send: the "
        "first UPDATE or DELETE stops the run (from version 18 on, the source itself refuses it)",
        f"ALTER TABLE {quoted(row['schema'], row['table'])} REPLICA IDENTITY FULL",
        severity=Severity.WARNING,
        note="Harmless for a table that only ever takes inserts.",
    )


def _identity_findings(row: Mapping[str, Any]) -> Iterator[Finding]:
    if row["has_identity"]:
        return
    table = quoted(row["schema"], row["table"])
    if row["has_primary_key"]:
        identity = "DEFAULT"
    elif row["key_index"] is not None:
        identity = f"USING INDEX {quoted(row['key_index'])}"
    else:
        identity = "FULL"
    yield _finding(
        f"{row['schema']}.{row['table']}",
        f"{row['schema']}.{row['table']} has no replica identity: once it is published, the source itself refuses "
        "every UPDATE and DELETE of it",
        f"ALTER TABLE {table} REPLICA IDENTITY {identity}",
        severity=Severity.WARNING,
        note="Harmless for a table that only ever takes inserts. A primary key serves best.",
    )
