"""Readers that are not ours read our files: DuckDB, and Spark."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.export import ExportOptions, export_changes
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import close_session, open_session
from tests.contract.encoders import ENCODERS, rows_of
from tests.contract.encoders import SCHEMA as ENCODED
from tests.support.variants import gated
from tests.support.written_log import Change, append, make_log

SCHEMA: Final = pa.schema(
    # By names that every reader takes.
    [field.with_name(field.name if field.name.isidentifier() else "name") for field in ENCODED if field.name[0] != "_"]
)
ROWS: Final[list[dict[str, Any]]] = [
    dict.fromkeys(SCHEMA.names),
    dict(zip(SCHEMA.names, (
        2**63 - 1, True, -(2**15), 2**31 - 1, 1.5, 1e308, Decimal("-999999999.999"), Decimal(10**38 - 1),
        'a "b", c\n\\d',
        b"\x00\xff", date(9999, 12, 31), time(23, 59, 59, 999999), datetime(9999, 12, 31, 23, 59, 59, 999999),
        datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC),
    ), strict=True)),
    dict(zip(SCHEMA.names, (
        -(2**63), False, 0, 0, float("inf"), -0.0, Decimal("0.001"), Decimal(-1), "", b"", date(1, 1, 1), time(0),
        datetime(1, 1, 1), datetime(1583, 1, 1, tzinfo=UTC),
    ), strict=True)),
    dict(zip(SCHEMA.names, (
        0, True, 1, -1, float("nan"), 5e-324, Decimal("1.000"), Decimal(0), "é漢🙂", b"\n", date(2024, 2, 29),
        time(1, 2, 3), datetime(2026, 1, 31, 12), datetime(1970, 1, 1, tzinfo=UTC),
    ), strict=True)),
]  # fmt: skip
_DUCKDB_TYPES: Final = {
    "id": "BIGINT", "flag": "BOOLEAN", "small": "SMALLINT", "number": "INTEGER", "real": "FLOAT", "double": "DOUBLE",
    "amount": "DECIMAL(12,3)", "large": "DECIMAL(38,0)", "name": "VARCHAR", "data": "VARCHAR", "day": "DATE",
    "clock": "TIME", "moment": "TIMESTAMP", "instant": "TIMESTAMPTZ",
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for name, make in ENCODERS.items():
        encoder = make(SCHEMA)
        path = tmp_path / f"{random.getrandbits(32)}{encoder.suffix}"
        batch = pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA)
        path.write_bytes(b"".join([encoder.head(), *encoder.body([batch]), encoder.tail()]))
        found[name] = path
    return found


def test_duckdb_reads_parquet_csv_and_json(files: dict[str, Path]) -> None:
    types = ", ".join(f"{name}: '{kind}'" for name, kind in _DUCKDB_TYPES.items())
    with duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        for scan, data in (
            (f"read_parquet('{files['parquet']}')", bytes),
            (f"read_csv('{files['csv']}', columns = {{{types}}}, allow_quoted_nulls = false, header = true)", _hex),
            (f"read_json('{files['json']}', columns = {{{types}}}, format = 'newline_delimited')", _base64),
        ):
            rows = connection.sql(f"SELECT * FROM {scan}").to_arrow_table().to_pylist()
            for row in rows:
                row["data"] = None if row["data"] is None else data(row["data"])
            assert rows_of(rows) == rows_of(_as_read(ROWS)), scan


def test_the_query_of_the_documentation_reads_what_manifests_name(tmp_path: Path) -> None:
    log_url, place = str(tmp_path / "log"), str(tmp_path / "out")
    make_log(log_url)
    append(log_url, 0, [[Change("I", 1, "a"), Change("I", 2, "b")], [Change("D", 1)]])
    for until in (0, 1):
        export_changes(open_reader(log_url), place, ExportOptions(until_seqno=until))
    (folder,) = (Path(place) / "public.t").iterdir()
    (folder / "orphan.parquet").write_bytes(b"what a killed export left")
    page = (Path(__file__).parents[3] / "docs" / "encoders.md").read_text()
    (query,) = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    query = query.replace("/mnt/shared/shop_changes", place).replace("public.orders", "public.t")
    with duckdb.connect() as connection:
        for statement in connection.extract_statements(query):
            found = connection.execute(statement)
        assert [row[:3] for row in found.fetchall()] == [(1, "a", "insert"), (2, "b", "insert"), (1, None, "delete")]


def _as_read(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return pa.Table.from_pylist(rows, schema=SCHEMA).to_pylist()  # type: ignore[no-any-return]


def _hex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


def _base64(text: str) -> bytes:
    import base64

    return base64.b64decode(text)


def _without_clock(columns: str) -> str:
    return columns.replace("clock string, ", "").replace("data string", "data binary")


@pytest.fixture(scope="module")
def session(spark_server: ServerLease, spark_session_id: str) -> Iterator[Any]:
    made = open_session(spark_server.url, spark_session_id)
    yield made
    close_session(made)


@gated
def test_spark_reads_parquet_csv_and_json(files: dict[str, Path], session: Any) -> None:
    """Spark has no time of the day without a date: it reads one as text, from CSV and JSON, and not from Parquet."""
    clocked = (
        "id bigint, flag boolean, small smallint, number int, real float, double double, amount decimal(12,3), "
        "large decimal(38,0), name string, data string, day date, clock string, moment timestamp_ntz, instant timestamp"
    )
    for frame, data in (
        (session.read.schema(_without_clock(clocked)).parquet(str(files["parquet"])), bytes),
        (
            session.read.option("header", True).option("multiLine", True).option("escape", '"')
            .option("emptyValue", "").option("nullValue", "\0").schema(clocked).csv(str(files["csv"])).drop("clock"),
            _hex,
        ),
        (session.read.schema(clocked).json(str(files["json"])).drop("clock"), _base64),
    ):  # fmt: skip
        rows = frame.toArrow().to_pylist()
        for row in rows:
            row["data"] = None if row["data"] is None else data(row["data"])
            row["instant"] = None if row["instant"] is None else row["instant"].astimezone(UTC)
        assert rows_of(rows) == rows_of(
            {name: value for name, value in row.items() if name != "clock"} for row in _as_read(ROWS)
        )
