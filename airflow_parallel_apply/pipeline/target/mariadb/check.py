"""Checks what stands in a pipeline's way at a target, each with the statement that fixes it. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, errors, new_finding
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.mariadb.fit import misfits
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE
from airflow_parallel_apply.pipeline.target.mariadb.rights import account
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.tables import find_table

_DURABLE: Final = ("1", "3")
_NAMES: Final = (
    "version",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "binlog_format",
    "local_infile",
    "read_only",
    "enforce_storage_engine",
)
_OLDEST: Final = {"MariaDB": (10, 6), "MySQL": (8, 0)}
_ON: Final = ("ON", "1")

_finding: Final = partial(new_finding, Side.TARGET)


def target_findings(session: Session, expected: Expectation) -> tuple[Finding, ...]:
    """See `Target.findings`. Errors: the pipeline's."""
    with session.errors("check"):
        settings = _settings(session)
        findings = [*_server_findings(settings), *_place_findings(session, expected)]
        for relation in expected.tables:
            findings += misfits(session, relation)
        if not errors(findings):
            findings += _row_findings(session, expected)
    return tuple(dict.fromkeys(findings))


def _settings(session: Session) -> dict[str, str]:
    marks = ", ".join(["%s"] * len(_NAMES))
    found = session.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", _NAMES)
    return {str(name): str(value) for name, value in found}


def _server_findings(settings: dict[str, str]) -> Iterator[Finding]:
    version = settings["version"]
    product = "MariaDB" if "MariaDB" in version else "MySQL"
    numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
    if numbers < _OLDEST[product]:
        oldest = ".".join(str(number) for number in _OLDEST[product])
        yield _finding("version", f"the server is {product} {version}", note=f"Use {product} {oldest} or later.")
    if product == "MySQL":
        yield _finding(
            "version",
            f"the server is {product} {version}, which this release was never tested with",
            severity=Severity.WARNING,
        )
    if settings["read_only"] in _ON:
        yield _finding("read_only", "the server is read-only", note="Connect to the primary.")
    if settings["local_infile"] not in _ON:
        yield _finding("local_infile", "the server takes no data from clients", "SET GLOBAL local_infile = ON")
    engine = settings.get("enforce_storage_engine", "")
    if engine.lower() not in ("", "innodb"):
        yield _finding(
            "enforce_storage_engine",
            f"the server makes every table {engine}, and no rows and positions would be committed together",
            "SET GLOBAL enforce_storage_engine = InnoDB",
        )
    # Positions say what need not be kept any more: no crash may take them back.
    if settings["innodb_flush_log_at_trx_commit"] not in _DURABLE:
        yield _finding(
            "innodb_flush_log_at_trx_commit",
            "the server's crash may take commits back",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        )
    if settings["log_bin"] in _ON:
        if settings["sync_binlog"] != "1":
            yield _finding("sync_binlog", "the server's crash may take commits back", "SET GLOBAL sync_binlog = 1")
        if settings["binlog_format"] == "STATEMENT":
            yield _finding(
                "binlog_format",
                "the server's log of statements takes none of READ COMMITTED",
                "SET GLOBAL binlog_format = 'MIXED'",
            )


def _place_findings(session: Session, expected: Expectation) -> Iterator[Finding]:
    """Find tables of the source that would be one here, and what the role may not do."""
    places: dict[tuple[str, str], str] = {}
    for relation in expected.tables:
        database, table = session.address.place(relation)
        other = places.setdefault(session.folded((database, table)), relation.name)
        if other != relation.name:
            found = _finding(
                relation.name,
                f"{other} and {relation.name} would be one table of the target, {database}.{table}",
                note="Exclude one; or name another database in the connection.",
            )
            yield replace(found, is_table=True)
    if session.row("SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", [DATABASE]) is None:
        name = account(session)
        rights = session.rows(
            "SELECT 1 FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'CREATE' AND GRANTEE = %s", [name]
        )
        if not rights:
            yield _finding(
                DATABASE,
                f"the database {DATABASE}, for positions and staging, is missing, and {name} may not make it",
                f"CREATE DATABASE {DATABASE}",
                f"GRANT ALL ON {DATABASE}.* TO {name}",
                severity=Severity.WARNING,
            )


def _row_findings(session: Session, expected: Expectation) -> Iterator[Finding]:
    wanted = (*(expected.tables if expected.are_empty else ()), *expected.unbegun)
    for relation in dict.fromkeys(wanted):
        table = find_table(session, relation)
        if table is not None and session.row(f"SELECT 1 FROM {table.quoted} LIMIT 1") is not None:
            found = _finding(
                relation.name,
                f"{relation.name} has rows at the target",
                f"DELETE FROM {table.quoted.replace('%%', '%')}",
                note="Or begin with start=equal, where both sides hold the same rows.",
            )
            yield replace(found, is_table=True)
