"""Translates the server's reports into errors of the pipeline, branched by what the caller may do."""

from __future__ import annotations

import re
from typing import Final

import pymysql
from pymysql.constants import CR, ER

from airflow_parallel_apply.pipeline.errors import (
    START_ANEW,
    ConfigurationError,
    Conflict,
    ConflictReason,
    Deadlock,
    ParallelApplyError,
    RetryableError,
    StagingLost,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE

CONSTRAINT_FAILED: Final = 4025
_CONNECTION_KILLED: Final = 1927
_STATEMENT_TIMEOUT: Final = 1969
_READ_ONLY: Final = 1836
_NO_PARTITION: Final = 1526

_UNAVAILABLE: Final = frozenset(
    {
        0,
        CR.CR_CONNECTION_ERROR,
        CR.CR_CONN_HOST_ERROR,
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
        CR.CR_SERVER_LOST_EXTENDED,
        _CONNECTION_KILLED,
        ER.QUERY_INTERRUPTED,
        ER.SERVER_SHUTDOWN,
        ER.CON_COUNT_ERROR,
        ER.TOO_MANY_USER_CONNECTIONS,
        ER.DISK_FULL,
        ER.RECORD_FILE_FULL,
        ER.OUTOFMEMORY,
        ER.OUT_OF_RESOURCES,
    }
)
_RETRYABLE: Final = frozenset({ER.LOCK_WAIT_TIMEOUT, ER.CHECKREAD, _STATEMENT_TIMEOUT})
_LOGIN: Final = frozenset({ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR})
_RIGHTS: Final = frozenset(
    {
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        ER.KILL_DENIED_ERROR,
        ER.OPTION_PREVENTS_STATEMENT,
        _READ_ONLY,
    }
)
_CONFLICTS: Final = {
    ER.DUP_ENTRY: ConflictReason.UNIQUE,
    ER.NO_REFERENCED_ROW: ConflictReason.FOREIGN_KEY,
    ER.ROW_IS_REFERENCED: ConflictReason.FOREIGN_KEY,
    ER.NO_REFERENCED_ROW_2: ConflictReason.FOREIGN_KEY,
    ER.ROW_IS_REFERENCED_2: ConflictReason.FOREIGN_KEY,
}
_PRIMARY: Final = "Connect to the primary, not to a replica."
PACKET: Final = "Raise max_allowed_packet at the server (SET GLOBAL max_allowed_packet = …), then run again."
NO_TABLE: Final = (
    "If it was renamed there before these rows were applied, give it this name back, and run again. Only one that "
    "never was there is to be made: `parallel-apply check` prints a CREATE TABLE for it. If it was there, and is gone, "
    f"only a new start leads on. {START_ANEW}"
)
_HINTS: Final = {
    ER.DUP_ENTRY: "Another row has the value already. Did somebody else write it, did the copies differ at the start, "
    "or does the target's collation take values for equal that the source tells apart?",
    ER.KILL_DENIED_ERROR: "Former sessions of the pipeline belong to another user: GRANT CONNECTION ADMIN ON *.* to "
    "this one (SUPER before MariaDB 10.5), or end them.",
    ER.LOCK_WAIT_TIMEOUT: "Another session holds locks on the rows or on the table.",
    ER.BAD_NULL_ERROR: "The target demands a value that the source has none for: make the column nullable.",
    _NO_PARTITION: "Add a partition that takes the value: ALTER TABLE … ADD PARTITION (PARTITION … VALUES …).",
    ER.NO_SUCH_TABLE: NO_TABLE,
    ER.BAD_FIELD_ERROR: "If it was renamed there before these rows were applied, give it this name back. Only a column "
    "that never was there is to be added.",
    _READ_ONLY: _PRIMARY,
    ER.NET_PACKET_TOO_LARGE: PACKET,
    CONSTRAINT_FAILED: "A CHECK of the target's table does not hold for the source's row: drop it, or make it as the "
    "source's is.",
}

_QUOTED: Final = (
    re.compile(r"(?<=Duplicate entry )'(?P<value>.*)'(?= for key)", re.DOTALL),
    re.compile(r"(?<= value: )'(?P<value>.*)'(?= for column)", re.DOTALL),
)
_COLUMN: Final = re.compile(r"for column (?:`(?:[^`]|``)*`\.)*[`'](?P<column>.+?)[`'](?: at row (?P<row>\d+))?$")


def translate(error: pymysql.MySQLError, *, op: str | None = None, table: str | None = None) -> ParallelApplyError:
    """The error to raise instead; neither a password nor a row's value is in its message."""
    code = code_of(error)
    text, values = wording(str(error.args[1]) if len(error.args) > 1 else str(error))
    hint = _HINTS.get(code)
    if code == ER.OPTION_PREVENTS_STATEMENT and "read-only" in text:
        hint = _PRIMARY
    if code == ER.NO_SUCH_TABLE and f"{DATABASE}.s_" in text:
        return StagingLost("a staging table is gone", op=op, hint="The unit is staged again.")
    if code in _UNAVAILABLE or isinstance(error, pymysql.InterfaceError):
        return Unavailable(f"cannot reach the target: {text}", op=op, hint="Is the server up, and reachable here?")
    if code in _LOGIN:
        return ConfigurationError(f"cannot connect to the target: {text}", op=op, hint="Check the connection.")
    if code == ER.LOCK_DEADLOCK:
        return Deadlock(f"the target rolled back: {text}", op=op, table=table)
    if code in _RETRYABLE:
        return RetryableError(f"the target rolled back: {text}", op=op, table=table, hint=hint)
    if code in _CONFLICTS:
        reason = _CONFLICTS[code]
        return Conflict(f"the target refuses: {text}", reason=reason, op=op, table=table, hint=hint, values=values)
    kind = ConfigurationError if code in _RIGHTS else TargetError
    column, _ = place_in(text)
    return kind(f"the target refuses: {text}", op=op, table=table, column=column, hint=hint, values=values)


def code_of(error: pymysql.MySQLError) -> int:
    """The server's number of the error, or the driver's; 0 where there is none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def wording(text: str) -> tuple[str, str | None]:
    """A message without the row's value that it quotes, and that value."""
    for pattern in _QUOTED:
        found = pattern.search(text)
        if found:
            return pattern.sub("…", text), found["value"]
    return text, None


def place_in(text: str) -> tuple[str | None, int | None]:
    """The column and the row, counted from 1, that a message names."""
    found = _COLUMN.search(text)
    if found is None:
        return None, None
    return found["column"], int(found["row"]) if found["row"] else None
