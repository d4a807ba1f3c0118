"""Sessions with MariaDB servers of a benchmark, and writing a log's history there as transactions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

import pymysql
from pymysql.constants import CLIENT

from airflow_parallel_apply.demo.mariadb import MariaDbServer
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO, Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import values_of

_SENT_ROWS: Final = 20_000
"""Rows whose statements are sent at once."""

_STATEMENT_ROWS: Final = 1_000
"""The most in one statement."""

_COLUMNS: Final = ("seqno", "relation_id", "operation", "values")


@contextmanager
def connected(server: MariaDbServer) -> Iterator[Any]:
    """A cursor of a session with a server, as its administrator; each statement commits by itself."""
    connection = pymysql.connect(
        host="127.0.0.1",
        port=server.port,
        user="root",
        charset="utf8mb4",
        autocommit=True,
        local_infile=True,
        client_flag=CLIENT.MULTI_STATEMENTS,
    )
    try:
        yield connection.cursor()
    finally:
        connection.close()


def write_history(log: LogReader, server: MariaDbServer, database: str) -> None:
    """Write a log's transactions, of insertions and updates by key, in order. Neighbours of one kind in a transaction
    are one statement, as they were at the source, and so one event of the binary log. Errors: `TargetError` for any
    other change.
    """
    relations = {relation.relation_id: relation for relation in log.state().relations}
    with connected(server) as session:
        session.execute(f"USE {database}")
        statements: list[str] = []
        before, waiting_count = -1, 0
        for (seqno, relation_id, operation), rows in _alike(log):
            if waiting_count > _SENT_ROWS:
                _send(session, statements)
                waiting_count = 0
            if seqno != before:
                statements.append("COMMIT;BEGIN")
                before = seqno
            statements.append(_statement(relations[relation_id], Operation(operation), rows))
            waiting_count += len(rows)
        _send(session, [*statements, "COMMIT"])


def _alike(log: LogReader) -> Iterator[tuple[tuple[int, int, str], list[list[str | None]]]]:
    """Neighbours of one transaction, table and operation."""
    rows = (
        row
        for batch in log.rows(-1, LAST_SEQNO, in_order=True)
        for row in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
    )
    for kind, found in groupby(rows, key=itemgetter(0, 1, 2)):
        while some := [values_of(values) for *_, values in islice(found, _STATEMENT_ROWS)]:
            yield kind, some


def _send(session: Any, statements: list[str]) -> None:
    session.execute(";".join(statements))
    while session.nextset():
        continue
    statements.clear()


def _statement(relation: Relation, operation: Operation, rows: list[list[str | None]]) -> str:
    """Changes of one kind. An update is written as an insertion that finds its row: in the binary log it is the update.
    Errors: `TargetError` for a change that these histories do not have.
    """
    values = ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    found = f"INSERT INTO `{relation.table}` VALUES {values}"
    if operation is Operation.INSERT:
        return found
    if operation is not Operation.UPDATE or not relation.key_indexes:
        raise TargetError(f"operation {operation} is not written at the primary", op="bench")
    names = [f"`{column.name}`" for column in relation.columns]
    return f"{found} ON DUPLICATE KEY UPDATE {', '.join(f'{name} = VALUES({name})' for name in names)}"


def _literal(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
