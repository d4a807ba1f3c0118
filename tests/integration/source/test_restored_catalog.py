"""A source that lost changes of its catalog which the log had registered is refused, though it has all rows: what it
got instead may have the same oids, files and transaction ids. Each change is followed by a mark, which the log reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.writing import open_writer
from tests.integration.source.conftest import Scene
from tests.integration.source.test_source_goes_back import bring_back, captured, close, go_back, insert, keep, server
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

__all__ = ["captured", "server"]

EACH_ROW_REWRITTEN = "ALTER TABLE t ALTER v TYPE text COLLATE \"POSIX\" USING v || '!'"
LOST = {
    "a column": 'ALTER TABLE t ALTER v TYPE text COLLATE "POSIX" USING v',
    "a table": "CREATE TABLE lost (id int PRIMARY KEY)",
    "a name": "ALTER TABLE t RENAME TO u",
}
INSTEAD = {
    "a column": EACH_ROW_REWRITTEN,
    "a table": "CREATE TABLE instead (id int PRIMARY KEY, v text)",
    "a name": "ALTER TABLE t RENAME TO w",
}


def run(scene: Scene) -> None:
    scene.source().prepare()
    scene.capture()


def capture_twice(scene: Scene) -> None:
    scene.capture()
    scene.capture()


def prepare_then_capture(scene: Scene) -> None:
    """As after a crash in between."""
    scene.source().prepare()
    close(scene)
    scene.capture()


RUNS = {"a run": run, "captures alone": capture_twice, "a run in two processes": prepare_then_capture}
# Captures follow no new tables.
CASES = [f"{what}, {how}" for what in LOST for how in RUNS if (what, how) != ("a table", "captures alone")]
OFTEN = ("a column, a run", "a column, captures alone")


@pytest.mark.parametrize("case", variants(CASES, seldom=[case for case in CASES if case not in OFTEN]))
def test_a_change_of_the_catalog_that_was_lost_is_missed(
    server: PostgresServer, captured: Scene, tmp_path: Path, case: str
) -> None:
    what, how = case.split(", ")
    go_back(server, captured, tmp_path, between=0, others=[LOST[what]], run=RUNS[how])
    before = captured.state()
    captured.execute("SELECT pg_switch_wal()", INSTEAD[what], "INSERT INTO far.t VALUES ('w')")
    if what == "a column":
        insert(captured, 10, 1)
    for _ in range(2):
        with pytest.raises(SourceError, match=r"restored from an older copy"):
            run(captured)
    assert any("restored" in finding.what for finding in captured.source().findings())
    assert captured.state().last_seqno == before.last_seqno
    close(captured)


@gated
def test_a_source_that_went_back_leaves_nothing_in_the_log_for_the_one_that_comes_again(
    server: PostgresServer, captured: Scene, tmp_path: Path
) -> None:
    captured.execute("CREATE TABLE u (id int PRIMARY KEY)")
    run(captured)
    close(captured)
    former = keep(server, tmp_path / "former")
    captured.execute("INSERT INTO u VALUES (1)")
    captured.capture()
    close(captured)
    right = keep(server, tmp_path / "right")
    bring_back(server, former)
    # Each gives the same transaction id to its alteration.
    captured.execute("INSERT INTO far.t VALUES ('w')", "ALTER TABLE t ALTER v SET NOT NULL")
    with pytest.raises(SourceError, match=r"restored from an older copy"):
        run(captured)
    close(captured)
    bring_back(server, right)
    captured.execute(EACH_ROW_REWRITTEN)
    with pytest.raises(SourceError, match=r"public\.t was rewritten while v changed"):
        run(captured)
    close(captured)


@pytest.fixture
def begun(server: PostgresServer, target_dsn: str, tmp_path: Path) -> Rig:
    """A pipeline of which nothing is captured yet."""
    patterns = TablePatterns(include=("public.*",))
    config = PipelineConfig(
        pipeline="p", log_url=str(tmp_path / "log"), start=Start.EQUAL, channels=1, lanes=1, tables=patterns
    )
    rig = Rig(config=config, source_dsn=server.dsn(), target_dsn=target_dsn)
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    rig.prepare()
    return rig


@pytest.fixture
def rig(begun: Rig) -> Rig:
    """A pipeline that has applied one row."""
    begun.write("INSERT INTO t VALUES (1, 'a')")
    begun.run()
    return begun


def recopy(rig: Rig, *tables: str) -> None:
    names = [("public", table) for table in tables or ("t",)]
    recopy_tables(rig.config, rig.source, rig.target, names, report=lambda _: None)


@gated
def test_a_source_that_went_back_into_the_first_run_does_not_begin_anew(begun: Rig) -> None:
    log_id = open_reader(begun.config.log_url).identity.log_id
    # As the first run writes it before it makes the slot.
    begun.write(
        f"COMMENT ON PUBLICATION parallel_apply_p IS 'parallel_apply: log {log_id}, being prepared'",
        "INSERT INTO t VALUES (1, 'neither equal nor captured')",
    )
    with pytest.raises(SourceError, match="lost that the first run came to its end"):
        begun.run()


@gated
def test_a_source_that_went_back_is_not_copied(server: PostgresServer, rig: Rig, tmp_path: Path) -> None:
    kept = keep(server, tmp_path)
    rig.write("INSERT INTO t VALUES (2, 'lost')")
    rig.run()
    bring_back(server, kept)
    rig.write("SELECT pg_switch_wal()", "UPDATE t SET v = 'another'")
    with pytest.raises(SourceError, match=r"restored from an older copy"):
        recopy(rig)
    assert rig.rows("SELECT * FROM t ORDER BY id") == [(1, "a"), (2, "lost")]


@pytest.mark.long
def test_an_alteration_that_was_copied_and_lost_is_missed(server: PostgresServer, rig: Rig, tmp_path: Path) -> None:
    kept = keep(server, tmp_path)
    rig.write(EACH_ROW_REWRITTEN)
    with pytest.raises(SourceError, match="rewritten"):
        rig.run()
    recopy(rig)
    rig.run()
    bring_back(server, kept)
    rig.write("SELECT pg_switch_wal()", EACH_ROW_REWRITTEN.replace("!", "?"))
    with pytest.raises(SourceError, match=r"restored from an older copy"):
        rig.run()


@gated
def test_no_run_is_green_over_rows_below_what_the_log_had_read_of_the_lost(
    server: PostgresServer, rig: Rig, tmp_path: Path
) -> None:
    rig.write("CREATE SCHEMA far", "CREATE TABLE far.t (v text)")
    rig.run()
    kept = keep(server, tmp_path)
    rig.write("INSERT INTO far.t SELECT repeat('x', 1000) FROM generate_series(1, 300)")
    rig.run()
    bring_back(server, kept)
    rig.write("INSERT INTO t VALUES (2, 'b')")
    with pytest.raises(Unavailable, match=r"source's WAL ends at .*SELECT pg_switch_wal\(\)"):
        rig.run()
    rig.write("SELECT pg_switch_wal()", "SELECT pg_switch_wal()")
    rig.run()
    assert rig.comparison().equal


def test_wal_that_ends_where_the_log_had_read_may_be_other_wal(captured: Scene) -> None:
    insert(captured, 3, 1)
    hints: list[str | None] = []
    while not hints:
        # As at a source that has written as much as it had lost. The server itself may write something in between.
        writer = open_writer(captured.config.log_url)
        writer.commit(captured.source().offset())
        try:
            captured.source().prepare()
        except Unavailable as behind:
            hints.append(behind.hint)
        assert len(captured.opened) < 20
    assert "SELECT pg_switch_wal()" in str(hints[0])
    captured.execute("SELECT pg_switch_wal()")
    run(captured)
    assert [row["key"] for row in captured.rows()] == ["0", "1", "2", "3"]
    close(captured)


@gated
def test_an_idle_source_that_crashed_goes_on(server: PostgresServer, captured: Scene) -> None:
    """Its slot stands below the log's place, and its WAL ends where the log has read."""
    captured.execute("CHECKPOINT")
    insert(captured, 3, 1)
    captured.capture()
    close(captured)
    server.kill()
    server.start()
    writer = open_writer(captured.config.log_url)
    writer.commit(captured.source().offset())
    run(captured)
    run(captured)
    close(captured)


@gated
def test_a_table_is_copied_anew_once_the_source_is_past_what_it_lost_of_others(
    server: PostgresServer, rig: Rig, tmp_path: Path
) -> None:
    rig.write("CREATE SCHEMA far", "CREATE TABLE far.t (v text)")
    rig.run()
    kept = keep(server, tmp_path)
    rig.write("INSERT INTO far.t SELECT repeat('x', 1000) FROM generate_series(1, 300)")
    rig.run()
    bring_back(server, kept)
    rig.write("ALTER TABLE t ADD COLUMN w integer")
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN w integer")
    with pytest.raises(Unavailable, match=r"source's WAL ends at .*SELECT pg_switch_wal\(\)"):
        recopy(rig)
    rig.write("SELECT pg_switch_wal()", "SELECT pg_switch_wal()")
    recopy(rig)
    rig.write("INSERT INTO t VALUES (2, 'b', 3)")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_table_that_was_followed_where_the_source_lost_it_counts_from_its_copy_on(
    server: PostgresServer, rig: Rig, tmp_path: Path
) -> None:
    without = rig.having(tables=TablePatterns(include=("public.*",), exclude=("public.n",)))
    rig.both("CREATE TABLE n (id int PRIMARY KEY)")
    without.write("CREATE SCHEMA far", "CREATE TABLE far.t (v text)")
    without.run()
    kept = keep(server, tmp_path)
    rig.write("INSERT INTO far.t SELECT repeat('x', 1000) FROM generate_series(1, 300)")
    # And no capture.
    rig.prepare()
    bring_back(server, kept)
    rig.write("INSERT INTO n VALUES (1)")
    with pytest.raises(SourceError, match=r"public\.n was dropped from the publication"):
        rig.run()
    recopy(rig, "n")
    rig.write("INSERT INTO n VALUES (2)")
    rig.run()
    assert rig.comparison().equal


WAL_SINCE = {"less": (), "more": ("SELECT pg_switch_wal()", "SELECT pg_switch_wal()", "INSERT INTO t VALUES (4, 'd')")}


@gated
@pytest.mark.parametrize("wal", variants([*WAL_SINCE], seldom=["less"]))
def test_rows_that_were_copied_before_a_run_and_lost_are_missed_and_copied_anew(
    server: PostgresServer, rig: Rig, tmp_path: Path, wal: str
) -> None:
    rig.both("CREATE TABLE u (id int PRIMARY KEY)")
    rig.run()
    kept = keep(server, tmp_path)
    rig.write("INSERT INTO t VALUES (2, 'lost')")
    recopy(rig)
    bring_back(server, kept)
    rig.write("INSERT INTO t VALUES (3, 'c')", *WAL_SINCE[wal])
    for _ in range(2):
        with pytest.raises(SourceError, match=r"lost rows that public\.t had at .* recopy .*--table public\.t"):
            rig.run()
    recopy(rig)
    rig.write("INSERT INTO t VALUES (5, 'e')")
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("wal", variants([*WAL_SINCE], seldom=["more"]))
def test_a_table_that_is_no_partition_any_more_by_a_lost_copy_is_copied_anew_too(
    server: PostgresServer, rig: Rig, tmp_path: Path, wal: str
) -> None:
    rig.both("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    rig.both("CREATE TABLE alone (id int PRIMARY KEY)")
    execute(rig.target_dsn, "CREATE TABLE parted_any PARTITION OF parted DEFAULT")
    rig.run()
    kept = keep(server, tmp_path)
    rig.write("ALTER TABLE parted ATTACH PARTITION alone FOR VALUES FROM (0) TO (9)")
    rig.write("CREATE TABLE again PARTITION OF parted DEFAULT", "INSERT INTO parted VALUES (1), (10)")
    recopy(rig, "parted")
    bring_back(server, kept)
    rig.write("INSERT INTO alone VALUES (3)", *WAL_SINCE[wal])
    with pytest.raises(SourceError, match=r"recopy .*--table public\.parted"):
        rig.run()
    with pytest.raises(ConfigurationError, match=r"recopy .*--table public\.parted --table public\.alone"):
        recopy(rig, "parted")
    recopy(rig, "parted", "alone")
    rig.both("CREATE TABLE again (id int PRIMARY KEY)")
    rig.run()
    rig.write("INSERT INTO alone VALUES (4)", "INSERT INTO again VALUES (5)")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_table_that_a_restored_source_lost_with_its_copy_can_be_named(
    server: PostgresServer, rig: Rig, tmp_path: Path
) -> None:
    kept = keep(server, tmp_path)
    rig.both("CREATE TABLE n (id int PRIMARY KEY)")
    rig.write("INSERT INTO n VALUES (1)")
    recopy(rig, "n")
    bring_back(server, kept)
    rig.write("INSERT INTO t VALUES (3, 'c')")
    with pytest.raises(SourceError, match=r"lost rows that public\.n had at .* recopy .*--table public\.n"):
        rig.run()
    recopy(rig, "n")
    rig.run()
    execute(rig.target_dsn, "DROP TABLE n")
    assert rig.comparison().equal


@gated
def test_a_mark_is_written_for_a_change_only(captured: Scene) -> None:
    captured.execute(LOST["a column"])
    run(captured)
    marked = captured.state()
    assert marked.resume is not None
    for _ in range(3):
        captured.execute("INSERT INTO far.t VALUES ('moves the horizon')")
        run(captured)
        assert not captured.source().has_changes(captured.state().place)
    assert captured.state().resume == marked.resume
    assert captured.state().last_seqno == marked.last_seqno
    close(captured)
