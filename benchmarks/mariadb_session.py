"""Sessions with MariaDB servers of a benchmark, and writing a log's history there as transactions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pymysql
from pymysql.constants import CLIENT

from airflow_parallel_apply.demo.mariadb import MariaDbServer
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO, Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import values_of

_STATEMENTS: Final = 20_000
"""That are sent at once."""


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
    """Write a log's transactions, of insertions and updates by key, in order; each change is a statement. Errors:
    `TargetError` for any other change.
    """
    relations = {relation.relation_id: relation for relation in log.state().relations}
    with connected(server) as session:
        session.execute(f"USE {database}")
        statements: list[str] = []
        before = -1
        for batch in log.rows(-1, LAST_SEQNO, in_order=True):
            columns = (batch.column(name).to_pylist() for name in ("seqno", "relation_id", "operation", "values"))
            for seqno, relation_id, operation, values in zip(*columns, strict=True):
                if seqno != before:
                    if len(statements) > _STATEMENTS:
                        _send(session, statements)
                    statements.append("COMMIT;BEGIN")
                    before = seqno
                statements.append(_statement(relations[relation_id], Operation(operation), values_of(values)))
        _send(session, [*statements, "COMMIT"])


def _send(session: Any, statements: list[str]) -> None:
    session.execute(";".join(statements))
    while session.nextset():
        continue
    statements.clear()


def _statement(relation: Relation, operation: Operation, values: list[str | None]) -> str:
    """One change. Errors: `TargetError` for one that these histories do not have."""
    pairs = [f"`{column.name}`={_literal(text)}" for column, text in zip(relation.columns, values, strict=True)]
    if operation is Operation.INSERT:
        return f"INSERT INTO `{relation.table}` SET {', '.join(pairs)}"
    if operation is not Operation.UPDATE or not relation.key_indexes:
        raise TargetError(f"operation {operation} is not written at the primary", op="bench")
    key = " AND ".join(pairs[index] for index in relation.key_indexes)
    return f"UPDATE `{relation.table}` SET {', '.join(pairs)} WHERE {key}"


def _literal(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
