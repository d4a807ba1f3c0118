"""A Delta lake as a feed: every change is a row, once, whoever appends it; and read by what is not ours."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Consistency, DdlPolicy, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, TargetError
from airflow_parallel_apply.pipeline.target.delta.applying import Applier
from airflow_parallel_apply.pipeline.target.delta.place import lake_of
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import close_session, open_session
from tests.support.mines import Died
from tests.support.rig import Rig, execute
from tests.support.variants import gated

CURRENT = """
SELECT id, v FROM (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY _seqno DESC, _fragno DESC) AS place FROM {changes}
) AS last WHERE place = 1 AND _operation <> 'delete' ORDER BY id
"""


@pytest.fixture
def rig(source_dsn: str, ledger_dsn: str, tmp_path: Path) -> Rig:
    execute(
        source_dsn,
        "CREATE TABLE t (id integer PRIMARY KEY, v text, at time)",
        "CREATE TABLE bag (a numeric, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
    )
    config = PipelineConfig(
        pipeline="demo", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2, ddl=DdlPolicy.SKIP
    )
    (tmp_path / "lake").mkdir()
    return Rig(
        config=config, source_dsn=source_dsn, target_dsn=f"delta://{tmp_path}/lake?feed=true", ledger_dsn=ledger_dsn
    )


def change(rig: Rig) -> None:
    rig.write(
        "INSERT INTO t SELECT i, 'v' || i, '12:00' FROM generate_series(1, 40) i",
        "UPDATE t SET v = v || '!' WHERE id % 2 = 0",
        "DELETE FROM t WHERE id % 5 = 0",
        "UPDATE t SET id = id + 100 WHERE id < 4",
        "INSERT INTO bag SELECT i % 3, 'x' FROM generate_series(1, 9) i",
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag LIMIT 2)",
    )


def table(rig: Rig, name: str = "t") -> DeltaTable:
    return DeltaTable(lake_of(rig.target.url).table_uri("public", name))


def rows_of(rig: Rig, name: str = "t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table(rig, name).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["_seqno"], row["_fragno"]))


def require_once(rig: Rig) -> None:
    for name in ("t", "bag"):
        places = Counter((row["_seqno"], row["_fragno"], row["_operation"]) for row in rows_of(rig, name))
        assert set(places.values()) == {1}
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("consistency", [Consistency.CHANNEL, pytest.param(Consistency.EPOCH, marks=pytest.mark.long)])
def test_every_change_is_a_row_once_and_current_rows_are_the_source_s(rig: Rig, consistency: Consistency) -> None:
    rig = rig.having(consistency=consistency)
    found = check_pipeline(rig.config, rig.source, rig.target)
    assert found.is_good, found.findings
    rig.prepare()
    change(rig)
    rig.run("one")
    require_once(rig)
    assert [row["_operation"] for row in rows_of(rig)].count("update") == 20
    rig.write("TRUNCATE bag", "INSERT INTO bag VALUES (1.0, 'y'), (1.00, 'y')", "ALTER TABLE t ADD COLUMN note text")
    rig.write("UPDATE t SET note = 'n', v = NULL")
    rig.run("two")
    require_once(rig)
    assert [row["_operation"] for row in rows_of(rig, "bag")][-3:] == ["truncate", "insert", "insert"]
    changes = duckdb.connect()
    changes.register("changes", table(rig).to_pyarrow_dataset())
    rows = changes.execute(CURRENT.format(changes="changes")).fetchall()
    assert rows == rig.rows("SELECT id, v FROM t ORDER BY id", side="source")
    by_files = duckdb.connect().execute(CURRENT.format(changes=f"read_parquet({table(rig).file_uris()})")).fetchall()
    assert by_files == rows


@gated
def test_a_unit_that_is_appended_and_not_yet_moved_is_not_appended_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.prepare()
    change(rig)
    plain = Applier.apply

    def lost(self: Applier, *given: Any) -> None:
        plain(self, *given)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(Applier, "apply", lost)
        with pytest.raises(Died):
            rig.run("one")
    rig.run("one")
    require_once(rig)


@gated
def test_a_table_may_have_columns_named_as_the_feed_s_own(rig: Rig) -> None:
    execute(rig.source_dsn, "CREATE TABLE own (id integer PRIMARY KEY, _operation text, _seqno bigint)")
    rig.prepare()
    rig.write("INSERT INTO own VALUES (1, 'sold', 7), (2, 'bought', 8)", "UPDATE own SET _seqno = 9 WHERE id = 2")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_column_that_comes_back_in_other_letters_would_be_two_of_one_name_to_readers(rig: Rig) -> None:
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'x')", 'ALTER TABLE t RENAME v TO "V"', "INSERT INTO t VALUES (2, 'y')")
    with pytest.raises(TargetError, match="column V, which readers take for v"):
        rig.run()
    assert table(rig).schema().to_arrow().names[:3] == ["id", "v", "at"]


@gated
def test_a_column_of_another_type_goes_on_where_the_lake_s_is_the_same_or_was_made_so(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.write("CREATE TABLE typed (id integer PRIMARY KEY, n integer, v varchar(5), w timestamp(3))")
    rig.ddl("")
    rig.prepare()
    rig.write("INSERT INTO typed SELECT i, i, 'v' || i, '2020-01-01 00:00:00.5' FROM generate_series(1, 3) i")
    rig.run()
    rig.write(
        "ALTER TABLE typed ALTER v TYPE text, ALTER w TYPE timestamp", "INSERT INTO typed VALUES (4, 4, 'longer')"
    )
    rig.run()
    assert rig.comparison().equal, rig.comparison()
    rig.write("ALTER TABLE typed ALTER n TYPE bigint", "UPDATE typed SET n = n + 5000000000 WHERE id = 1")
    with pytest.raises(TargetError, match=r"n of public\.typed is int32 in the lake, .* int64 now.*Rewrite the lake's"):
        rig.run()
    here = table(rig, "typed")
    rows = here.to_pyarrow_table()
    rows = rows.set_column(1, "n", rows.column("n").cast(pa.int64()))
    write_deltalake(here, rows, mode="overwrite", schema_mode="overwrite")
    rig.run()
    assert rig.comparison().equal, rig.comparison()
    assert len(rows_of(rig, "typed")) == 5


def test_a_lake_of_current_rows_is_no_feed(rig: Rig) -> None:
    with pytest.raises(ConfigurationError, match="feed=perhaps"):
        lake_of("delta:///lake?feed=perhaps")
    rig.prepare()
    uri = lake_of(rig.target.url).table_uri("public", "t")
    Path(uri).parent.mkdir(parents=True, exist_ok=True)
    write_deltalake(uri, pa.table({"id": pa.array([1], pa.int32())}), mode="append")
    change(rig)
    with pytest.raises(TargetError, match="no feed"):
        rig.run("one")


@pytest.mark.long
def test_spark_reads_the_files_of_a_table(rig: Rig, spark_server: ServerLease, spark_session_id: str) -> None:
    rig.prepare()
    change(rig)
    rig.run("one")
    session = open_session(spark_server.url, spark_session_id)
    session.read.parquet(*table(rig).file_uris()).createOrReplaceTempView("changes")
    found = [tuple(row) for row in session.sql(CURRENT.format(changes="changes")).collect()]
    close_session(session)
    assert found == rig.rows("SELECT id, v FROM t ORDER BY id", side="source")


@pytest.mark.long
def test_rows_that_were_there_come_first_as_reads(rig: Rig) -> None:
    rig = rig.having(start=Start.COPY, epoch_max_changes=10)
    change(rig)
    rig.prepare()
    rig.write("UPDATE t SET v = 'later' WHERE id > 100", "DELETE FROM bag")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison
    changes = table(rig).to_pyarrow_table().sort_by([("_seqno", "ascending"), ("_fragno", "ascending")])
    assert changes.column("_operation").to_pylist() == ["read"] * 32 + ["update"] * 3
