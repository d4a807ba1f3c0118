"""MariaDB's rows for a comparison with another kind: each value as the source's text of it, floats as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import pyarrow as pa
import pymysql
from pymysql.constants import ER

from airflow_parallel_apply.pipeline.compare.protocol import ComparedRows, SourceTable, TableRefused
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.model.value_type import OPAQUE, ValueKind, ValueType
from airflow_parallel_apply.pipeline.target.mariadb.address import parse_address
from airflow_parallel_apply.pipeline.target.mariadb.diagnosis import code_of, wording
from airflow_parallel_apply.pipeline.target.mariadb.mapping import TEXTS
from airflow_parallel_apply.pipeline.target.mariadb.quoting import listed, quoted
from airflow_parallel_apply.pipeline.target.mariadb.session import Session

_BATCH_ROWS: Final = 20_000
_REFUSALS: Final = (
    ER.NO_SUCH_TABLE,
    ER.BAD_DB_ERROR,
    ER.BAD_FIELD_ERROR,
    ER.TABLEACCESS_DENIED_ERROR,
    ER.COLUMNACCESS_DENIED_ERROR,
    ER.DBACCESS_DENIED_ERROR,
)


class MariaDbRows:
    """See `ComparedRows`. Each table's rows are those of one moment."""

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self._session = session

    def tables(self) -> list[SourceTable]:
        raise NotImplementedError("MariaDB is no source yet")

    def having(self, table: SourceTable) -> SourceTable:
        with self._session.errors("compare"):
            here = self._types(table)
        return table.with_generated(name for name in table.generated if name in here)

    def batches(self, table: SourceTable) -> Iterator[pa.RecordBatch]:
        place = self._session.address.place_of(table.schema, table.table)
        with self._session.errors("compare"), self._refusing():
            types = self._types(table)
            texts = [_text_of(table.values.get(name, OPAQUE), types.get(name, "")) for name in table.columns]
            is_float = [table.values.get(name, OPAQUE).kind is ValueKind.FLOAT for name in table.columns]
            with closing(self._session.streaming(f"SELECT {listed(table.columns)} FROM {quoted(*place)}")) as cursor:
                while rows := cursor.fetchmany(_BATCH_ROWS):
                    columns = [
                        pa.array([None if value is None else float(value) for value in column], pa.float64())
                        if number
                        else pa.array([None if value is None else text(value) for value in column], pa.string())
                        for column, text, number in zip(zip(*rows, strict=True), texts, is_float, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(columns, names=table.columns)

    def cancel(self) -> None:
        with suppress(pymysql.MySQLError):
            self._session.cancel()

    def _types(self, table: SourceTable) -> dict[str, str]:
        found = self._session.rows(
            "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            self._session.address.place_of(table.schema, table.table),
        )
        return {str(name): str(word).lower() for name, word in found}

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except pymysql.MySQLError as error:
            if code_of(error) in _REFUSALS:
                raise TableRefused(wording(str(error.args[1]))[0]) from error
            raise


def _text_of(value: ValueType, word: str) -> Callable[[Any], str]:
    """Make the source's text of what the server says, by the source's type and that of the column."""
    if word in TEXTS:
        return str
    match value.kind:
        case ValueKind.BOOLEAN:
            return lambda text: {"1": "t", "0": "f"}.get(text, text)
        case ValueKind.DECIMAL:
            return lambda text: _at_scale(text, value.scale)
        case ValueKind.INTEGER:
            return lambda text: _at_scale(text, 0)
        case ValueKind.BYTES:
            return lambda found: f"\\x{found.hex()}"
        case ValueKind.TIME | ValueKind.TIMESTAMP:
            return _trimmed
        case ValueKind.INSTANT:
            return lambda text: f"{_trimmed(text)}+00"
        case _:
            return str


def _at_scale(text: str, scale: int) -> str:
    """Without the zeros that only the target's scale brings. Another digit there stays: it is another number."""
    whole, _, fraction = text.partition(".")
    kept = fraction[:scale] + fraction[scale:].rstrip("0")
    return f"{whole}.{kept}" if kept else whole


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


@contextmanager
def open_mariadb_rows(endpoint: Endpoint, name: str) -> Iterator[ComparedRows]:
    """A session of its own. Errors: `Unavailable`, `ConfigurationError`."""
    with closing(Session(parse_address(endpoint.url), pipeline="", as_text=True)) as session:
        yield MariaDbRows(name, session)
