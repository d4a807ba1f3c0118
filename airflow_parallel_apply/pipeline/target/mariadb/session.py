"""One session with the target: opened when needed, set up so that values travel exactly, registered under its claim."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import pymysql
from pymysql.constants import CLIENT
from pymysql.converters import conversions
from pymysql.cursors import SSCursor

from airflow_parallel_apply.pipeline.errors import ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.target.mariadb.address import Address
from airflow_parallel_apply.pipeline.target.mariadb.diagnosis import PACKET, place_in, translate, wording
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE

_CONNECT_TIMEOUT_SECONDS: Final = 10
_LOCK_SECONDS: Final = 10
_ROWS_SECONDS: Final = 3600
_WIDEST: Final = 4
"""The most bytes that one letter or byte becomes in a statement."""

_ENCODERS: Final = {kind: convert for kind, convert in conversions.items() if not isinstance(kind, int)}
"""The driver's conversions but for those of values that are read, which go by the numbers of the server's types."""

_SETTINGS: Final = (
    # Whatever the server is set to: a value is stored as it is, or refused, or warned of, which refuses it here.
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00',"
    " sql_notes = 1, max_error_count = 64, unique_checks = 1,"
    # As the server's own replica does: what a foreign key did at the source is in the log.
    " foreign_key_checks = 0,"
    # No limit of the server's cuts rows off, or ends a statement that takes long.
    " sql_safe_updates = 0, sql_big_selects = 1, sql_select_limit = 18446744073709551615, completion_type = 0,"
    " /*M! max_statement_time = 0, idle_transaction_timeout = 0, idle_write_transaction_timeout = 0,"
    " idle_readonly_transaction_timeout = 0, */"
    # Rows that are sent, or read, wait for Spark and the other side.
    f" net_read_timeout = {_ROWS_SECONDS}, net_write_timeout = {_ROWS_SECONDS},"
    f" innodb_lock_wait_timeout = {_LOCK_SECONDS}, lock_wait_timeout = {_LOCK_SECONDS}",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION TRANSACTION READ WRITE",
)


class Session:
    """Not thread-safe. A broken connection is replaced at the next use, under the same claim."""

    def __init__(self, address: Address, *, pipeline: str, as_text: bool = False) -> None:
        """`as_text`: values that are read are the server's own text of them, and bytes."""
        self.address = address
        self._as_text = as_text
        self.pipeline = pipeline
        self._holding: tuple[int | None, str, int | None] | None = None
        self._name = ""
        self._connection: Any = None
        self._is_in_transaction = False
        self._packet_bytes = 0
        self._folds_names = 0

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement in which `%s` are values; the cursor. Errors: the driver's own."""
        cursor = self._open().cursor()
        if sum(len(value) for value in values if isinstance(value, str | bytes)) * _WIDEST > self._packet_bytes:
            self._require_taken(cursor.mogrify(statement, tuple(values)))
        cursor.execute(statement, tuple(values))
        return cursor

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query. Errors: the driver's own."""
        return list(self.execute(statement, values).fetchall())

    def row(self, statement: str, values: Sequence[object] = ()) -> tuple[Any, ...] | None:
        """The first row of a query. Errors: the driver's own."""
        return next(iter(self.rows(statement, values)), None)

    def folded(self, place: tuple[str, str]) -> tuple[str, str]:
        """A database's and a table's name as the server compares them. Errors: the driver's own."""
        if self._connection is None:
            self._connect()
        return (place[0].lower(), place[1].lower()) if self._folds_names else place

    def streaming(self, statement: str) -> Any:
        """A cursor over a query's rows, which the server sends as they are taken. Errors: the driver's own."""
        cursor = self._open().cursor(SSCursor)
        cursor.execute(statement, ())
        return cursor

    def cancel(self) -> None:
        """End the statement under way, from another thread. Errors: the driver's own."""
        connection = self._connection
        if connection is not None:
            with closing(pymysql.connect(**self.address.connecting)) as another:
                another.cursor().execute(f"KILL QUERY {connection.thread_id()}")

    def exactly(self, statement: str, values: Sequence[object] = (), *, table: str) -> int:
        """Run a statement that stores values, and return how many rows it found. The server warns of what it does not
        store as it is, and goes on. Errors: the pipeline's, which name the table; `TargetError` for a warning.
        """
        try:
            cursor = self.execute(statement, values)
        except pymysql.MySQLError as error:
            raise translate(error, table=table) from error
        count: int = cursor.rowcount
        for warning in self.warnings() if cursor.warning_count else ():
            text, value = wording(warning)
            raise TargetError(
                f"the target does not take a value as it is: {text}",
                table=table,
                column=place_in(warning)[0],
                values=value,
            )
        return count

    def warnings(self) -> list[str]:
        """The messages of the last statement, the first ones if there are many. Errors: the driver's own."""
        return [str(text) for _, _, text in self._connection.show_warnings() or ()]

    @contextmanager
    def transaction(self, op: str, *, channel: int | None = None) -> Iterator[None]:
        """Commit what the block did, or nothing. Errors say where: the driver's become the pipeline's."""
        with self.errors(op, channel=channel), self.atomic():
            yield

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Commit what the block did, or nothing. Errors: the driver's own."""
        connection = self._open()
        connection.begin()
        self._is_in_transaction = True
        try:
            yield
            connection.commit()
        except BaseException:
            with suppress(pymysql.MySQLError):
                connection.rollback()
            raise
        finally:
            self._is_in_transaction = False

    @contextmanager
    def errors(self, op: str, *, channel: int | None = None, seqno: int | None = None) -> Iterator[None]:
        """Turn the driver's errors into the pipeline's, and fill in where they happened."""
        try:
            yield
        except pymysql.MySQLError as error:
            raise translate(error, op=op).at(pipeline=self.pipeline, channel=channel, seqno=seqno) from error
        except ParallelApplyError as error:
            error.op = error.op or op
            error.at(pipeline=self.pipeline, channel=channel, seqno=seqno)
            raise

    @property
    def name(self) -> str:
        """The name under which this session is registered; empty while it holds nothing."""
        return self._name

    def become(self, channel: int | None, token: str, *, group: int | None = None) -> None:
        """Be registered under a claim from now on, for whoever takes it over. Errors: the driver's own."""
        self.rest()
        self._holding = (channel, token, group)
        self._register()

    def rest(self) -> None:
        """Be registered under no claim: the next holder's take does not end this session. Errors: the driver's own."""
        name, self._name, self._holding = self._name, "", None
        if name:
            self.execute(f"DELETE FROM {DATABASE}.holder WHERE name = %s", [name])
            self.execute("DO RELEASE_LOCK(%s)", [name])

    def close(self) -> None:
        """Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(pymysql.MySQLError):
            if self._name and connection.open:
                connection.cursor().execute(f"DELETE FROM {DATABASE}.holder WHERE name = %s", [self._name])
        self._name, self._holding = "", None
        with suppress(pymysql.MySQLError):
            connection.close()

    def _require_taken(self, statement: str) -> None:
        """The server hangs up on a statement that is too long, before it has read what is to be told of it."""
        # Older releases of the driver keep bytes that are no letters as surrogates.
        size = len(statement.encode("utf-8", "surrogateescape"))
        if size >= self._packet_bytes:
            raise TargetError(
                f"a statement of {size:,} bytes is more than the server takes: max_allowed_packet is "
                f"{self._packet_bytes:,}",
                hint=PACKET,
            )

    def _open(self) -> Any:
        if self._connection is not None and not self._is_in_transaction:
            try:
                self._connection.ping(reconnect=False)
            except pymysql.MySQLError:
                self._drop_connection()
        if self._connection is None:
            self._connect()
        return self._connection

    def _connect(self) -> None:
        connection = pymysql.connect(
            **self.address.connecting,
            charset="utf8mb4",
            autocommit=True,
            local_infile=True,
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            conv=_ENCODERS if self._as_text else None,
            # Count the rows that an update finds, whether or not it changes them.
            client_flag=CLIENT.FOUND_ROWS,
        )
        try:
            for setting in _SETTINGS:
                connection.cursor().execute(setting)
            asking = connection.cursor()
            asking.execute("SELECT CAST(@@max_allowed_packet AS CHAR), CAST(@@lower_case_table_names AS CHAR)")
            self._packet_bytes, self._folds_names = map(int, asking.fetchone())
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        if self._holding is not None:
            self._register()

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        with suppress(pymysql.MySQLError, OSError):
            connection.close()

    def _register(self) -> None:
        """By a lock, which goes with the session whatever ends it, and a row that says whose lock it is."""
        if self._connection is None:
            self._connect()
            if self._name:
                return
        channel, token, group = self._holding or (None, "", None)
        name = f"pa:{uuid.uuid4().hex}"
        cursor = self._connection.cursor()
        cursor.execute("SELECT GET_LOCK(%s, 0)", [name])
        cursor.execute(
            f"INSERT INTO {DATABASE}.holder (name, pipeline, channel, group_number, claim) VALUES (%s, %s, %s, %s, %s)",
            [name, self.pipeline, channel, group, token],
        )
        self._name = name
