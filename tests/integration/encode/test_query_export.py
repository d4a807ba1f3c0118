"""A query's rows as files and as messages: typed, once for each id, and refused where it is no query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError, ParallelApplyError
from airflow_parallel_apply.pipeline.export import (
    ExportOptions,
    ExportReport,
    QueryOptions,
    export_changes,
    export_query,
)
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.support.kafka import committed
from tests.support.rig import execute
from tests.support.variants import gated
from tests.support.written_log import Change, append, make_log

SQL = "SELECT id, v AS name, n * 2 AS twice, n, at, b, f, day FROM t ORDER BY id -- the newest ones\n;"


@pytest.fixture
def source(source_dsn: str) -> Endpoint:
    execute(
        source_dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, v text, n numeric(10, 2), at timestamptz, b bytea, f real, day date)",
        "INSERT INTO t VALUES (1, E'a\\t\"', 1.5, '2026-01-31 12:00+01', '\\x00ff', 'NaN', '2026-01-31'),"
        " (2, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    return Endpoint(conn_id="shop", url=source_dsn)


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(default_partitions=2) as found:
        yield found


def export(source: Endpoint, place: str, export_id: str = "today", *, sql: str = SQL, **more: Any) -> ExportReport:
    named = {name: more.pop(name) for name in ("table", "key") if name in more}
    return export_query(source, QueryOptions(sql=sql, export_id=export_id, **named), place, ExportOptions(**more))


def files(place: str) -> list[dict[str, Any]]:
    manifests = Dataset(FilePlace(place)).manifests()
    return [
        row for one in manifests for file in one.files for row in pq.read_table(Path(place) / file.path).to_pylist()
    ]


def test_rows_are_files_of_the_query_s_columns_once_for_each_id(source: Endpoint, tmp_path: Path) -> None:
    place = str(tmp_path / "out")
    report = export(source, place, table="sales.daily")
    assert (report.rows, report.version, report.texts) == (2, 0, ("sales.daily.twice",))
    assert "out/sales.daily/" in report.files[0]
    first, second = files(place)
    assert (first.pop("f") != first.get("f", 0), first) == (
        True,
        {
            "id": 1, "name": 'a\t"', "twice": "3.00", "n": Decimal("1.50"), "b": b"\0\xff",
            "at": datetime(2026, 1, 31, 11, tzinfo=UTC), "day": datetime(2026, 1, 31).date(),
        },
    )  # fmt: skip
    assert [value for name, value in second.items() if name != "id"] == [None] * 7
    assert (
        str(export(source, place))
        == "nothing to export: the place has the query's rows, export today, or there are none"
    )
    assert len(files(place)) == 2
    assert export(source, place, "tomorrow", window_bytes=1, threads=1).version == 1
    assert len(files(place)) == 4


@gated
def test_rows_are_messages_with_the_key_s_columns(source: Endpoint, broker: KafkaBroker) -> None:
    place = f"kafka://{broker.address}/shop"
    report = export(source, place, table="sales.daily", key=("id",))
    assert (report.rows, report.topics) == (2, ("shop.sales.daily",))
    assert export(source, place).rows == 0
    found = sorted(committed(broker.address, "shop.sales.daily"), key=lambda read: read.key or b"")
    assert [read.key for read in found] == [b'{"id":1}', b'{"id":2}']
    assert [(read.headers["export"], read.headers["row"]) for read in found] == [("today", "0"), ("today", "1")]
    assert json.loads(found[0].value or b"")["n"] == "1.50"
    export(source, place, "tomorrow", table="sales.daily", key=("id",))
    assert len(committed(broker.address, "shop.sales.daily")) == 4


def test_an_id_is_remembered_behind_many_others(source: Endpoint, tmp_path: Path) -> None:
    place = str(tmp_path / "out")
    for number in range(12):
        assert export(source, place, f"day {number}", sql="SELECT 1 AS a").version == number
    assert export(source, place, "day 0", sql="SELECT 1 AS a").rows == 0
    assert len(files(place)) == 12


def test_values_that_a_type_cannot_hold_make_their_column_text(source: Endpoint, tmp_path: Path) -> None:
    place = str(tmp_path / "out")
    sql = "SELECT 'infinity'::date AS day"
    assert export(source, place, sql=sql).texts == ("query.rows.day",)
    assert files(place) == [{"day": "infinity"}]


@gated
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT 1 AS a, 2 AS a", "has two columns a"),
        ("DELETE FROM t RETURNING id", "refuses the query"),
        ("SELECT nextval('s')", "refuses the query"),
        ("SELECT 1) TO STDOUT; DROP TABLE t; --", "refuses the query"),
        ("SELECT 1) AS q; SET default_transaction_read_only = off; DROP TABLE t; --", "refuses the query"),
        ("SELECT 1 / 0 AS a FROM t", "division by zero"),
        (" ; ", "parameter sql"),
    ],
)
def test_what_is_no_query_is_refused_and_nothing_is_written(
    source: Endpoint, tmp_path: Path, sql: str, said: str
) -> None:
    execute(source.url, "CREATE SEQUENCE s")
    place = str(tmp_path / "out")
    with pytest.raises(ConfigurationError, match=said):
        export(source, place, sql=sql)
    assert files(place) == []
    execute(source.url, "SELECT count(*) FROM t")


def test_a_place_has_queries_or_a_log_and_no_envelopes_of_rows(source: Endpoint, tmp_path: Path) -> None:
    log_url, place = str(tmp_path / "log"), str(tmp_path / "out")
    make_log(log_url)
    append(log_url, 0, [[Change("I", 1, "a")]])
    export_changes(open_reader(log_url), place, ExportOptions())
    with pytest.raises(EncodeError, match="what it has is log, and not queries"):
        export(source, place)
    with pytest.raises(ParallelApplyError, match="one of changes"):
        export(source, str(tmp_path / "other"), format=Format.DEBEZIUM)
