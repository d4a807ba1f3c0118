"""A pipeline from PostgreSQL into a directory of files: every change is there once, and nothing of a former owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import (
    Consistency,
    DdlPolicy,
    EpochProtocol,
    PipelineConfig,
    Start,
    TablePatterns,
)
from airflow_parallel_apply.pipeline.errors import FatalError, ParallelApplyError
from airflow_parallel_apply.pipeline.log.open import log_exists
from tests.integration.target_files.feeds import feed, files_of, replayed
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated

TABLE = "CREATE TABLE t (id integer PRIMARY KEY, v text, n numeric(10, 2), at timestamptz)"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def rig(source_dsn: str, ledger_dsn: str, lake: Path, tmp_path: Path) -> Rig:
    execute(source_dsn, TABLE)
    config = PipelineConfig(pipeline="demo", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
    return Rig(config=config, source_dsn=source_dsn, target_dsn=f"files+file://{lake}", ledger_dsn=ledger_dsn)


def of_source(rig: Rig) -> dict[int, dict[str, object]]:
    rows = rig.rows("SELECT id, v, n, at FROM t", side="source")
    return {row[0]: dict(zip(("id", "v", "n", "at"), row, strict=True)) for row in rows}


def change(rig: Rig) -> None:
    rig.write(
        "INSERT INTO t SELECT i, 'v' || i, i / 4.0, now() FROM generate_series(1, 200) i",
        "UPDATE t SET v = v || '!' WHERE id % 2 = 0",
        "UPDATE t SET v = v || '?' WHERE id % 4 = 0",
        "DELETE FROM t WHERE id % 5 = 0",
        "UPDATE t SET id = id + 1000 WHERE id < 20",
    )


@pytest.mark.parametrize(
    ("consistency", "channels"),
    [
        (Consistency.CHANNEL, 8),
        (Consistency.EPOCH, 1),
        pytest.param(Consistency.CHANNEL, 1, marks=pytest.mark.long),
        pytest.param(Consistency.EPOCH, 8, marks=pytest.mark.long),
    ],
)
def test_a_feed_has_every_change_once(rig: Rig, lake: Path, consistency: Consistency, channels: int) -> None:
    rig = rig.having(channels=channels, consistency=consistency)
    rig.prepare()
    for _ in range(2):
        change(rig)
        rig.write("DELETE FROM t WHERE id < 1000", "DELETE FROM t WHERE id < 1010")
        rig.run()
        assert replayed(lake, "public.t") == of_source(rig)
        assert rig.comparison().equal
        rig.write("DELETE FROM t")
    updates = [row for row in feed(lake, "public.t") if row["_operation"] == "update"]
    assert len(updates) == 2 * (100 + 50), "each change of a key, and not the last alone"


@gated
def test_truncates_and_new_definitions_come_in_their_place(rig: Rig, lake: Path) -> None:
    rig = rig.having(ddl=DdlPolicy.SKIP)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "TRUNCATE t", "INSERT INTO t VALUES (3, 'c')")
    rig.run()
    assert set(replayed(lake, "public.t")) == {3}
    assert [row["_operation"] for row in feed(lake, "public.t")] == ["insert", "insert", "truncate", "insert"]
    rig.write("ALTER TABLE t ADD COLUMN more text", "INSERT INTO t (id, v, more) VALUES (4, 'd', 'x')")
    rig.run()
    assert replayed(lake, "public.t")[4]["more"] == "x"
    assert len({file.relation_id for file in files_of(lake, "public.t")}) == 2


@gated
def test_ddl_that_gives_rows_other_values_stops_a_feed_which_gets_none_of_them(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')")
    added = "ALTER TABLE t ADD type text, ADD w$1 text; ALTER TABLE t ALTER COLUMN type SET DEFAULT 'a'"
    rig.transaction(rig.ddl(added), added, "INSERT INTO t (id, v) VALUES (2, 'b')")
    rig.run()
    altered = "ALTER TABLE t ALTER w$1 TYPE text USING upper(v)"
    rig.transaction(rig.ddl(altered), altered)
    with pytest.raises(FatalError, match=r"may have other values.*USING upper") as told:
        rig.run()
    skip_as_the_hint_says(rig, told.value)
    rig.run()


@gated
@pytest.mark.parametrize(
    "changes",
    [
        ("ADD s serial",),
        ("ADD s char(5) DEFAULT 'ab'", "ALTER s TYPE text"),
        pytest.param(
            ("ADD s text GENERATED ALWAYS AS (v || '!') STORED", "ALTER s DROP EXPRESSION"), marks=pytest.mark.long
        ),
    ],
)
def test_a_column_of_which_nothing_tells_what_older_rows_have_stops_a_feed_until_they_are_sent(
    rig: Rig, changes: tuple[str, ...]
) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    *before, change = changes
    install(rig.source_dsn)
    rig.prepare()
    rig.write(*(f"ALTER TABLE t {one}" for one in before), "INSERT INTO t (id, v) VALUES (1, 'a')")
    rig.run()
    rig.write(f"ALTER TABLE t {change}", "INSERT INTO t (id, v) VALUES (2, 'b')")
    with pytest.raises(FatalError, match=r"what older rows of public\.t have in s since") as told:
        rig.run()
    rig.write("UPDATE t SET v = v WHERE id = 1")
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_feed_that_stops_for_a_column_tells_those_of_other_tables_that_the_transaction_changed(rig: Rig) -> None:
    rig.write("CREATE TABLE u (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t (id, v) VALUES (1, 'a')", "INSERT INTO u VALUES (1)")
    rig.run()
    rig.transaction(
        "ALTER TABLE t ADD s serial",
        "ALTER TABLE u ADD n serial",
        "INSERT INTO t (id, v) VALUES (2, 'b')",
        "INSERT INTO u VALUES (2)",
    )
    more = r"Such a run takes more of the same transaction as done, .* older rows of public\.u have in n since"
    with pytest.raises(FatalError, match=rf"public\.t have in s since(?s:.*){more}") as told:
        rig.run()
    rig.write("UPDATE t SET v = v", "UPDATE u SET id = id")
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_large_transaction_that_runs_alone_is_staged_in_sets(rig: Rig, lake: Path) -> None:
    rig.prepare()
    rig.transaction(
        "INSERT INTO t SELECT i, 'old' FROM generate_series(1, 1000) i",
        "TRUNCATE t",
        "INSERT INTO t SELECT i, 'new' FROM generate_series(1, 1000) i",
    )
    rig.run()
    assert len(feed(lake, "public.t")) == 2001
    assert {row["v"] for row in replayed(lake, "public.t").values()} == {"new"}


@gated
def test_a_row_is_found_by_the_key_that_its_table_had_at_each_change(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.SKIP)
    execute(rig.source_dsn, "CREATE TABLE k (id integer PRIMARY KEY, u integer NOT NULL UNIQUE, v text)")
    execute(rig.source_dsn, "ALTER TABLE k ALTER v SET STORAGE EXTERNAL")
    rig.prepare()
    rig.write(
        "INSERT INTO k SELECT i, i, repeat(i::text, 3000) FROM generate_series(1, 8) i",
        "UPDATE k SET u = u + 100 WHERE id < 4",
        "DELETE FROM k WHERE id = 2",
    )
    rig.run("by id")
    rig.write(
        "ALTER TABLE k REPLICA IDENTITY USING INDEX k_u_key",
        "UPDATE k SET id = id + 10 WHERE id < 6",
        "UPDATE k SET u = u + 200 WHERE id = 11",
        "DELETE FROM k WHERE id = 13",
    )
    rig.run("by u")
    comparison = rig.comparison()
    assert comparison.equal, comparison
    rig.write("ALTER TABLE k REPLICA IDENTITY DEFAULT", "UPDATE k SET u = u + 1000", "DELETE FROM k WHERE id = 14")
    rig.run("by id again")
    rig.write(
        "ALTER TABLE k REPLICA IDENTITY FULL", "ALTER TABLE k DROP CONSTRAINT k_pkey", "INSERT INTO k VALUES (7, -1)"
    )
    rig.write("UPDATE k SET v = 'both' WHERE id = 7", "DELETE FROM k WHERE id = 8")
    rig.run("by all values")
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_table_may_have_columns_named_as_the_feed_s_own(rig: Rig) -> None:
    execute(rig.source_dsn, "CREATE TABLE own (id integer PRIMARY KEY, _operation text, _seqno bigint)")
    rig.prepare()
    rig.write("INSERT INTO own VALUES (1, 'sold', 7), (2, 'bought', 8)", "UPDATE own SET _seqno = 9", "DELETE FROM own")
    rig.write("INSERT INTO own VALUES (1, 'sold', 7)")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_tables_that_would_have_one_name_or_none_are_refused(rig: Rig) -> None:
    long = "ö" * 31
    rig.write('CREATE SCHEMA a CREATE TABLE "b.c" (id integer PRIMARY KEY)')
    rig.write('CREATE SCHEMA "a.b" CREATE TABLE c (id integer PRIMARY KEY)')
    rig.write(f'CREATE SCHEMA "{long}" CREATE TABLE "{long}" (id integer PRIMARY KEY)')
    rig = rig.having(tables=TablePatterns(include=("*.*",)))
    with pytest.raises(ParallelApplyError, match=r'"a"\."b\.c" and "a\.b"\."c" would be one table.* too long'):
        rig.prepare()
    rig.write('ALTER SCHEMA "a.b" RENAME TO d', f'ALTER SCHEMA "{long}" RENAME TO e')
    rig.prepare()
    rig.write('INSERT INTO a."b.c" VALUES (1)', "INSERT INTO d.c VALUES (2)")
    rig.run()
    assert rig.comparison().equal


@gated
def test_what_a_person_does_from_outside_works_as_with_a_database(rig: Rig, lake: Path) -> None:
    execute(rig.source_dsn, "CREATE TABLE odd (id integer PRIMARY KEY, span interval)")
    made = check_pipeline(rig.having(start=Start.COPY, create_tables=True).config, rig.source, rig.target)
    assert any("create_tables makes no tables" in finding.what for finding in made.findings)
    found = check_pipeline(rig.config, rig.source, rig.target)
    assert found.is_good, found.findings
    assert any("source's text: span" in finding.what and finding.where == "public.odd" for finding in found.findings)
    refused = check_pipeline(
        rig.having(consistency=Consistency.EPOCH, epoch_protocol=EpochProtocol.TWO_PHASE).config, rig.source, rig.target
    )
    assert any("prepares no transactions" in finding.what for finding in refused.findings)
    rig.prepare()
    change(rig)
    rig.run()
    status = read_status(rig.target, "demo", rig.config.log_url)
    assert len({channel.seqno for channel in status.channels}) == 1
    named = len(files_of(lake))
    removal = drop_pipeline("demo", rig.source, rig.target, log_url=rig.config.log_url, with_log=True)
    assert removal.left == ()
    assert not log_exists(rig.config.log_url)
    assert len(files_of(lake)) == named > 0
    for start in Start:
        again = check_pipeline(rig.having(start=start).config, rig.source, rig.target)
        assert any("has files of a pipeline already" in finding.what for finding in again.findings)


@gated
def test_rows_that_were_there_come_first_as_reads(rig: Rig, lake: Path) -> None:
    rig = rig.having(start=Start.COPY, channels=3, epoch_max_changes=50)
    change(rig)
    assert check_pipeline(rig.config, rig.source, rig.target).is_good
    prepared = rig.prepare()
    assert any("Copied 160 rows" in line for line in prepared.created)
    assert files_of(lake) == [], "rows come with the first run"
    copied = read_status(rig.target, "demo", rig.config.log_url).copy
    assert copied is not None
    assert (copied.phase, copied.rows) == ("finished", 160)
    rig.write("DELETE FROM t WHERE id % 3 = 0", "INSERT INTO t VALUES (5000, 'new')")
    rig.run()
    assert replayed(lake, "public.t") == of_source(rig)
    assert rig.comparison().equal
    operations = [row["_operation"] for row in feed(lake, "public.t")]
    assert operations[:160] == ["read"] * 160
    assert "read" not in operations[160:]
    assert operations[-1] == "insert"
    rig.run()
    assert len(feed(lake, "public.t")) == len(operations)
    other = check_pipeline(rig.having(pipeline="other").config, rig.source, rig.target)
    assert any("directory of pipeline demo" in finding.what for finding in other.findings)
