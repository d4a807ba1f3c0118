"""Readers that are not ours take a feed's files: those that manifests name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import close_session, open_session
from tests.integration.target_files.feeds import files_of
from tests.support.rig import Rig, execute
from tests.support.variants import gated

DUCKDB = """
SET VARIABLE files = (
    SELECT list(DISTINCT '{lake}/' || f.path)
    FROM (SELECT unnest(body.files) AS f FROM read_json('{lake}/_manifests/**/*.json'))
    WHERE f.table = 'public.t'
);
SELECT id, v, CAST(n AS text) FROM (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY _seqno DESC, _fragno DESC) AS place
    FROM {reader}(getvariable('files'), union_by_name = true)
) WHERE place = 1 AND _operation <> 'delete' ORDER BY id
"""


@pytest.fixture
def rig(source_dsn: str, ledger_dsn: str, tmp_path: Path) -> Rig:
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text, n numeric(10, 2), at timestamptz)")
    config = PipelineConfig(pipeline="demo", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
    return Rig(config=config, source_dsn=source_dsn, target_dsn=f"files+file://{tmp_path}/lake", ledger_dsn=ledger_dsn)


def fed(rig: Rig, format_: str) -> Rig:
    found = Rig(
        config=rig.config,
        source_dsn=rig.source_dsn,
        target_dsn=f"{rig.target_dsn}?format={format_}",
        ledger_dsn=rig.ledger_dsn,
    )
    found.prepare()
    found.write(
        "INSERT INTO t SELECT i, 'v\"' || i || E',\\n', i / 4.0, now() FROM generate_series(1, 50) i",
        "UPDATE t SET v = NULL WHERE id % 7 = 0",
        "DELETE FROM t WHERE id > 40",
        "UPDATE t SET id = id + 100 WHERE id < 5",
    )
    found.run()
    return found


def current(rig: Rig) -> list[tuple[Any, ...]]:
    return rig.rows("SELECT id, v, n::text FROM t ORDER BY id", side="source")


@pytest.mark.parametrize(
    ("format_", "reader"), [("parquet", "read_parquet"), ("csv", "read_csv"), ("json", "read_json")]
)
def test_duckdb_finds_the_source_s_rows(rig: Rig, tmp_path: Path, format_: str, reader: str) -> None:
    fed(rig, format_)
    lake = tmp_path / "lake"
    found = duckdb.connect()
    rows: list[tuple[Any, ...]] = []
    for statement in DUCKDB.format(lake=lake, reader=reader).split(";"):
        rows = found.execute(statement).fetchall()
    assert [(row[0], row[1], float(row[2])) for row in rows] == [
        (row[0], row[1], float(row[2])) for row in current(rig)
    ]


@gated
def test_fastavro_finds_every_change(rig: Rig, tmp_path: Path) -> None:
    fed(rig, "avro")
    lake = tmp_path / "lake"
    rows: list[dict[str, Any]] = []
    for file in files_of(lake, "public.t"):
        with (lake / file.path).open("rb") as opened:
            rows += list(fastavro.reader(opened))  # type: ignore[arg-type]
    last: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (row["_seqno"], row["_fragno"])):
        last[row["id"]] = row
    kept = [(key, row["v"], str(row["n"])) for key, row in sorted(last.items()) if row["_operation"] != "delete"]
    assert kept == current(rig)


@pytest.mark.long
def test_spark_finds_the_source_s_rows(
    rig: Rig, tmp_path: Path, spark_server: ServerLease, spark_session_id: str
) -> None:
    fed(rig, "parquet")
    lake = tmp_path / "lake"
    session = open_session(spark_server.url, spark_session_id)
    rows = session.read.parquet(*(str(lake / file.path) for file in files_of(lake, "public.t")))
    rows.createOrReplaceTempView("changes")
    found = session.sql(
        "SELECT id, v, CAST(n AS string) FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY _seqno DESC,"
        " _fragno DESC) AS place FROM changes) WHERE place = 1 AND _operation <> 'delete' ORDER BY id"
    ).collect()
    close_session(session)
    assert [tuple(row) for row in found] == current(rig)
