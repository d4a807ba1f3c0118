"""A pipeline from PostgreSQL into a Delta lake: its tables are the source's, and other readers find the same."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Schema

from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.config import Consistency, DdlPolicy, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ParallelApplyError, TargetError
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

TABLE = "CREATE TABLE t (id integer PRIMARY KEY, v text, n numeric(10, 2), at timestamptz)"
COLUMNS = ("id", "v", "n", "at")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def rig(source_dsn: str, ledger_dsn: str, lake: Path, tmp_path: Path) -> Rig:
    execute(source_dsn, TABLE)
    lake.mkdir()
    config = PipelineConfig(pipeline="demo", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
    return Rig(config=config, source_dsn=source_dsn, target_dsn=f"delta://{lake}", ledger_dsn=ledger_dsn)


def of_source(rig: Rig, table: str = "t", columns: tuple[str, ...] = COLUMNS) -> list[tuple[Any, ...]]:
    return sorted(rig.rows(f"SELECT {', '.join(columns)} FROM {table}", side="source"), key=repr)


def of_lake(lake: Path, table: str = "t", columns: tuple[str, ...] = COLUMNS) -> list[tuple[Any, ...]]:
    rows = DeltaTable(f"{lake}/public/{table}").to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def as_text(rows: list[tuple[Any, ...]]) -> list[tuple[str, ...]]:
    """Instants have other classes of zones."""
    return sorted(
        tuple(value.isoformat() if hasattr(value, "isoformat") else str(value) for value in row) for row in rows
    )


def change(rig: Rig) -> None:
    rig.write(
        "INSERT INTO t SELECT i, 'v' || i, i / 4.0, now() FROM generate_series(1, 200) i",
        "UPDATE t SET v = v || '!' WHERE id % 2 = 0",
        "UPDATE t SET v = v || '?' WHERE id % 4 = 0",
        "DELETE FROM t WHERE id % 5 = 0",
        "UPDATE t SET id = id + 1000 WHERE id < 20",
    )


@gated
@pytest.mark.parametrize(
    ("channels", "consistency"),
    [
        (2, Consistency.CHANNEL),
        pytest.param(2, Consistency.EPOCH, marks=GATED),
        pytest.param(1, Consistency.CHANNEL, marks=GATED),
        pytest.param(8, Consistency.CHANNEL, marks=pytest.mark.long),
        pytest.param(8, Consistency.EPOCH, marks=pytest.mark.long),
    ],
)
def test_the_lake_has_the_sources_rows(rig: Rig, lake: Path, channels: int, consistency: Consistency) -> None:
    rig = rig.having(channels=channels, consistency=consistency)
    rig.prepare()
    for _ in range(2):
        change(rig)
        rig.run()
        assert as_text(of_lake(lake)) == as_text(of_source(rig))
        rig.write(
            "DELETE FROM t WHERE id % 3 = 0", "TRUNCATE t", "INSERT INTO t VALUES (5000, 'kept')", "DELETE FROM t"
        )
    rig.run()
    assert of_lake(lake) == []


@gated
def test_truncates_and_what_is_around_them_come_in_order(rig: Rig, lake: Path) -> None:
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "TRUNCATE t", "INSERT INTO t VALUES (3, 'c')")
    rig.transaction("INSERT INTO t VALUES (1, 'x')", "UPDATE t SET id = 7 WHERE id = 3", "TRUNCATE t")
    rig.transaction(
        "INSERT INTO t SELECT i, 'old' FROM generate_series(1, 1000) i",
        "TRUNCATE t",
        "INSERT INTO t SELECT i, 'new' FROM generate_series(1, 1000) i",
        "UPDATE t SET id = -id WHERE id <= 10",
    )
    rig.run()
    assert as_text(of_lake(lake)) == as_text(of_source(rig))


@gated
def test_large_values_that_are_not_sent_stay_also_under_another_key(rig: Rig, lake: Path) -> None:
    rig.write("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, repeat('abc' || i, 3000) FROM generate_series(1, 30) i")
    rig.run()
    rig.write("UPDATE t SET n = 5 WHERE id < 10", "UPDATE t SET id = id + 100 WHERE id BETWEEN 5 AND 15")
    rig.write("UPDATE t SET n = 6, id = id + 100 WHERE id > 112")
    rig.run()
    assert as_text(of_lake(lake)) == as_text(of_source(rig))


@gated
def test_a_new_column_is_added_where_that_is_asked_for_and_the_rest_is_refused(rig: Rig, lake: Path) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD COLUMN more integer")
    rig.write("INSERT INTO t (id, more) VALUES (2, 4)", "UPDATE t SET more = 5")
    rig.run()
    columns = ("id", "v", "more")
    assert of_lake(lake, columns=columns) == of_source(rig, columns=columns)
    rig.write("ALTER TABLE t DROP COLUMN n", "INSERT INTO t (id, more) VALUES (3, 4)")
    with pytest.raises(ParallelApplyError, match="does not follow"):
        rig.run()
    assert len(of_lake(lake, columns=columns)) == 2


@gated
@pytest.mark.parametrize("comes", ["with it", "later"])
def test_a_new_column_is_added_that_was_sent(rig: Rig, lake: Path, comes: str) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    added = 'ALTER TABLE t ADD COLUMN more integer, ADD "Else" text'
    sent = rig.ddl(added)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')")
    rig.transaction(sent, added, *(["UPDATE t SET more = id"] if comes == "with it" else []))
    rig.run()
    rig.write("INSERT INTO t (id, more, \"Else\") VALUES (2, 4, 'b')")
    rig.run()
    found = of_lake(lake, columns=("id", "v", "more", "Else"))
    assert found == of_source(rig, columns=("id", "v", "more", '"Else"'))


@gated
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("ADD COLUMN more integer DEFAULT 5", "older rows have '5' in the new column more"),
        ("ADD COLUMN more integer, ALTER COLUMN v TYPE varchar(9) USING left(v, 2)", "cannot run this"),
        ("ADD COLUMN more integer, DROP COLUMN n", "n is gone"),
    ],
)
def test_a_sent_statement_that_does_more_is_refused(rig: Rig, lake: Path, statement: str, reason: str) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    sent = rig.ddl(f"ALTER TABLE t {statement}")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'abc')")
    rig.transaction(sent, f"ALTER TABLE t {statement}")
    rig.write("INSERT INTO t (id) VALUES (2)")
    with pytest.raises(ParallelApplyError, match=reason):
        rig.run()
    assert of_lake(lake, columns=("id", "v")) == [(1, "abc")]


@gated
def test_a_column_of_which_nothing_tells_what_older_rows_have_is_refused(rig: Rig, lake: Path) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD COLUMN c uuid DEFAULT gen_random_uuid()")
    rig.write("INSERT INTO t (id) VALUES (2)")
    with pytest.raises(ParallelApplyError, match="older rows have values that nothing tells in the new column c"):
        rig.run()
    assert of_lake(lake, columns=("id",)) == [(1,)]


def test_what_cannot_be_represented_is_refused_by_name_before_the_first_row(rig: Rig) -> None:
    rig.write(
        "CREATE TABLE nothing ()",
        "CREATE TABLE floating (id double precision PRIMARY KEY)",
        'CREATE TABLE cased (id integer PRIMARY KEY, "V" text, v text)',
    )
    with pytest.raises(ParallelApplyError) as refused:
        rig.prepare()
    for words in ("public.nothing has no columns", "key column id of public.floating", "public.cased has columns"):
        assert words in str(refused.value)


@gated
def test_a_value_that_its_column_cannot_hold_is_refused_by_table_and_column(rig: Rig, lake: Path) -> None:
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a', 1)", "INSERT INTO t VALUES (2, 'b', 'NaN')")
    with pytest.raises(ParallelApplyError, match="no column of a Delta table holds") as refused:
        rig.run()
    assert "table public.t, column n" in str(refused.value)


@gated
def test_duckdb_reads_the_lake_and_a_comparison_finds_what_differs(rig: Rig, lake: Path) -> None:
    rig.prepare()
    change(rig)
    rig.run()
    assert [table.equal for table in rig.comparison().tables] == [True]
    rig.write("UPDATE t SET v = 'another' WHERE id = 21")
    (compared,) = rig.comparison().tables
    assert not compared.equal
    rig.run()
    found = DeltaTable(f"{lake}/public/t").to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("t", found)
        rows = connection.execute("SELECT count(*), sum(n), max(v) FROM t").fetchone()
    assert rows == rig.rows('SELECT count(*), sum(n), max(v COLLATE "C") FROM t', side="source")[0]


@gated
def test_rows_that_were_there_are_copied_into_the_lake_before_what_changes(rig: Rig, lake: Path) -> None:
    rig = rig.having(start=Start.COPY, epoch_max_changes=50)
    change(rig)
    rig.write("CREATE TABLE kept (id integer PRIMARY KEY)")
    rig.run()
    assert as_text(of_lake(lake)) == as_text(of_source(rig))
    rig.write("UPDATE t SET v = 'later' WHERE id % 2 = 0", "DELETE FROM t WHERE id % 3 = 0")
    rig.run()
    assert as_text(of_lake(lake)) == as_text(of_source(rig))
    assert rig.comparison().equal


@gated
def test_a_column_that_the_source_computes_and_the_lake_has_is_refused(rig: Rig, lake: Path) -> None:
    rig.write("CREATE TABLE c (id integer PRIMARY KEY, a integer, b integer GENERATED ALWAYS AS (a * 2) STORED)")
    rig = rig.having(start=Start.EQUAL)
    integers = {name: pa.array([], pa.int32()) for name in ("id", "a", "b")}
    write_deltalake(f"{lake}/public/c", pa.table(integers))
    with pytest.raises(ParallelApplyError, match="has a column b, which the source computes and does not send"):
        rig.prepare()
    write_deltalake(
        f"{lake}/public/c", pa.table(integers).drop_columns(["b"]), mode="overwrite", schema_mode="overwrite"
    )
    rig.prepare()
    rig.write("INSERT INTO c VALUES (1, 2)")
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("options", ["", "?feed=true"])
def test_a_pipeline_without_its_positions_applies_nothing_twice(rig: Rig, lake: Path, options: str) -> None:
    rig = replace(rig, target_dsn=f"{rig.target_dsn}{options}")
    rig.write("CREATE TABLE bag (v text)", "ALTER TABLE bag REPLICA IDENTITY FULL")
    rig.prepare()
    rig.write("INSERT INTO bag VALUES ('a'), ('b')")
    rig.run()
    (lake / "_parallel_apply").rename(lake / "kept")
    rig.write("INSERT INTO bag VALUES ('c')")
    with pytest.raises(ParallelApplyError, match=r"positions in .* are gone, and public\.bag has rows"):
        rig.run()
    assert DeltaTable(f"{lake}/public/bag").count() == 2
    shutil.rmtree(lake / "_parallel_apply")
    (lake / "kept").rename(lake / "_parallel_apply")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_lake_that_is_gone_does_not_begin_anew_where_the_log_lacks_rows_that_it_had(rig: Rig, lake: Path) -> None:
    rig = rig.having(start=Start.EQUAL)
    rig.write("INSERT INTO t VALUES (1, 'there before')")
    there = pa.table({"id": pa.array([1], pa.int32()), "v": ["there before"]})
    write_deltalake(f"{lake}/public/t", there)
    DeltaTable(f"{lake}/public/t").alter.add_columns(
        Schema.from_arrow(pa.schema([("n", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC"))])).fields
    )
    rig.prepare()
    rig.write("INSERT INTO t VALUES (2, 'since')")
    rig.run()
    shutil.rmtree(lake)
    lake.mkdir()
    for _ in range(2):
        with pytest.raises(TargetError, match=r"positions in .* are gone"):
            rig.run()
    assert not any(lake.iterdir())


@gated
def test_a_pipeline_that_was_dropped_begins_anew_with_the_rows_that_are_there(rig: Rig) -> None:
    rig.prepare()
    change(rig)
    rig.run()
    drop_pipeline("demo", rig.source, rig.target, slot="", log_url=rig.config.log_url, with_log=True)
    rig = rig.having(start=Start.EQUAL)
    rig.prepare()
    rig.write("INSERT INTO t SELECT max(id) + 1 FROM t")
    rig.run()
    assert rig.comparison().equal


def test_a_copy_into_a_table_that_has_rows_is_refused_before_anything_is_made(rig: Rig, lake: Path) -> None:
    rows = pa.table({"id": pa.array([1], pa.int32()), "v": ["x"], "n": pa.nulls(1, pa.decimal128(10, 2))})
    write_deltalake(f"{lake}/public/t", rows.append_column("at", pa.nulls(1, pa.timestamp("us", "UTC"))))
    rig = rig.having(start=Start.COPY)
    rig.write("INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(ParallelApplyError, match="has rows in the lake"):
        rig.prepare()
    assert rig.rows("SELECT pubname FROM pg_publication", side="source") == []


@gated
@pytest.mark.parametrize("key", [1, 4], ids=["the first channel is ahead", "the last channel is ahead"])
def test_channels_that_a_failed_run_left_apart_meet_under_epoch_consistency(rig: Rig, lake: Path, key: int) -> None:
    """`key`: of a row that somebody else wrote, which stops its channel, while the other one goes on."""
    rig.prepare()
    rig.write("INSERT INTO t VALUES (0)")
    rig.run()
    rig.write("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 40) i")
    table = DeltaTable(f"{lake}/public/t")
    write_deltalake(table, pa.Table.from_pylist([{"id": key}], schema=table.to_pyarrow_table().schema), mode="append")
    with pytest.raises(TargetError, match=f"key {key}: .* is in the table already"):
        rig.run()
    DeltaTable(f"{lake}/public/t").delete(f"id = {key}")
    rig.having(consistency=Consistency.EPOCH).run()
    assert of_lake(lake) == of_source(rig)
