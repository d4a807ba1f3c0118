"""Rows of PostgreSQL that are copied into the log: to the last letter those that the slot would have sent."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pyarrow.compute as pc
import pytest

from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.capture.values import IntoLog
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Consistency, Endpoint, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, LeaseBusy, SourceError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.interval import Interval
from airflow_parallel_apply.pipeline.run import opening, preparing
from airflow_parallel_apply.pipeline.source.postgres import session
from airflow_parallel_apply.router.plan import plan
from airflow_parallel_apply.spark.server import ServerLease
from airflow_parallel_apply.spark.session import ConnectAccess
from airflow_parallel_apply.spark.stage import open_stage
from tests.support.awkward_tables import BOTH, SOURCE
from tests.support.awkward_writer import Writer
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute
from tests.support.variants import gated

Found = dict[str, Counter[tuple[object, ...]]]
_INTO_LOG = IntoLog(report=lambda progress: None, cancelled=lambda: False)
_REWRITTEN = """
DO $$
DECLARE one record;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR one IN
        SELECT CASE WHEN c.relkind = 'p' THEN '' ELSE 'ONLY ' END || c.oid::regclass AS name,
            (SELECT string_agg(quote_ident(attname), ', ') FROM pg_attribute
                WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '') AS columns
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
            AND n.nspname IN ('public', 'Odd Schema') AND c.relname <> 'plain'
    LOOP
        EXECUTE format('CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT %2$s FROM %1$s', one.name, one.columns);
        EXECUTE format('DELETE FROM %s', one.name);
        EXECUTE format('INSERT INTO %1$s (%2$s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM kept',
            replace(one.name, 'ONLY ', ''), one.columns);
        DROP TABLE kept;
    END LOOP;
END $$
"""
"""Each row is deleted, and inserted as it was."""


def inserted(url: str, after_seqno: int) -> Found:
    """The insertions behind a seqno, by table. A row without a key is in no bucket of its own."""
    log = open_reader(url)
    state = log.state()
    found: Found = defaultdict(Counter)
    for batch in log.rows(after_seqno, state.last_seqno):
        for row in batch.filter(pc.equal(batch.column("operation"), "I")).to_pylist():
            relation = state.relation(row["relation_id"])
            place = (row["bucket"], row["key"], row["key_order"]) if relation.key_indexes else ()
            found[relation.name][(*place, row["values"], row["unsent"], row["old_key"])] += 1
    return found


@gated
def test_copied_rows_are_those_that_the_slot_sends(source_dsn: str, tmp_path: Path) -> None:
    execute(source_dsn, *BOTH, *SOURCE, "CREATE TABLE plain (at timestamptz, line text)")
    install(source_dsn)
    source = Endpoint(conn_id="source", url=source_dsn)
    config = PipelineConfig(
        pipeline="sent", log_url=str(tmp_path / "sent"), start=Start.EMPTY, tables=TablePatterns(include=("*.*",))
    )
    with closing(open_capture(source, config)) as capturing:
        capturing.prepare()
    with psycopg.connect(source_dsn) as connection:
        writer = Writer(connection, 5)
        for _ in range(200):
            writer.transaction()
        connection.execute("INSERT INTO plain VALUES (NULL, E'\\\\N'), ('infinity', '')")
        connection.execute("INSERT INTO plain VALUES (now(), E'\\b\\f\\n\\r\\t\\v\\\\ \\\\N \\\\.')")
        connection.execute("INSERT INTO plain VALUES ('epoch', repeat('wide \\', 2000000)), (NULL, NULL)")
    with closing(open_capture(source, config)) as capturing:
        list(capturing.capture(capturing.source.offset(), max_changes=10**6, cancelled=lambda: False))
        before = open_reader(config.log_url).state().last_seqno
        execute(source_dsn, "ALTER TABLE log_only REPLICA IDENTITY FULL", _REWRITTEN)
        list(capturing.capture(capturing.source.offset(), max_changes=10**6, cancelled=lambda: False))
    copying = replace(
        config, pipeline="copied", log_url=str(tmp_path / "copied"), start=Start.COPY, epoch_max_changes=7
    )
    with closing(open_capture(source, copying)) as capturing:
        capturing.prepare(_INTO_LOG)
    sent, copied = inserted(config.log_url, before), inserted(copying.log_url, NO_SEQNO)
    sent["public.plain"] = inserted(config.log_url, NO_SEQNO)["public.plain"]
    assert copied == sent
    assert len(copied) >= 20, "nearly all tables have rows"
    assert {name: relation.computed for name, relation in _relations(copying.log_url).items()} == {
        name: relation.computed for name, relation in _relations(config.log_url).items()
    }


@pytest.fixture
def fed(source_dsn: str, ledger_dsn: str, tmp_path: Path) -> Rig:
    """A pipeline whose log begins with a copy, and which has applied some changes behind it."""
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE plain (v text)")
    execute(source_dsn, "INSERT INTO t SELECT i, 'there' FROM generate_series(1, 500) i")
    execute(source_dsn, "INSERT INTO plain VALUES (1), (1)")
    config = PipelineConfig(pipeline="fed", log_url=str(tmp_path / "log"), slot="one", epoch_max_changes=100)
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=f"files+file://{tmp_path}/lake", ledger_dsn=ledger_dsn)
    rig.run()
    rig.write("UPDATE t SET v = 'later' WHERE id % 2 = 0", "DELETE FROM t WHERE id % 3 = 0")
    rig.run()
    return rig


@gated
def test_other_pipelines_begin_where_a_log_begins_with_a_copy(fed: Rig, target_dsn: str, tmp_path: Path) -> None:
    execute(target_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE plain (v text)")
    tables = replace(fed.having(pipeline="tables", start=Start.EMPTY), target_dsn=target_dsn, ledger_dsn=None)
    with pytest.raises(ConfigurationError, match="of a later moment"):
        tables.having(start=Start.COPY).prepare()
    tables.run()
    assert tables.comparison().equal
    other = replace(fed.having(pipeline="other"), target_dsn=f"files+file://{tmp_path}/other")
    other.run()
    assert other.comparison().equal
    fed.write("INSERT INTO t VALUES (1000, 'new')")
    for rig in (fed, tables, other):
        rig.run()
        assert rig.comparison().equal


@pytest.mark.long
def test_a_table_is_not_copied_anew_into_a_feed_and_what_to_do_instead_is_said(fed: Rig) -> None:
    fed.write("CREATE TABLE late (id integer PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    with pytest.raises(ConfigurationError, match="new tables with rows"):
        fed.prepare()
    with pytest.raises(ConfigurationError, match="cannot be copied anew") as refused:
        recopy_tables(fed.config, fed.source, fed.target, [("public", "late")], report=lambda progress: None)
    assert "exclude pattern" in str(refused.value.hint)
    fed.having(tables=TablePatterns(exclude=("public.late",))).run()
    assert fed.having(tables=TablePatterns(exclude=("public.late",))).comparison().equal


@gated
def test_a_table_that_was_created_again_is_left_out_of_a_feed_and_not_taken_in_again_behind_its_former_rows(
    fed: Rig,
) -> None:
    fed.write("DROP TABLE t", "CREATE TABLE t (id integer PRIMARY KEY, v text)", "INSERT INTO t VALUES (7, 'new')")
    with pytest.raises(SourceError, match=r"recopy.*copies nothing to files.* Leave the table out with an exclude"):
        fed.run()
    notes = [one.note for one in check_pipeline(fed.config, fed.source, fed.target).findings if "recopy" in one.note]
    assert notes
    assert all("copies nothing to files" in note for note in notes)
    without = fed.having(tables=TablePatterns(exclude=("public.t",)))
    without.run()
    assert without.comparison().equal
    fed.write("DELETE FROM t")
    with pytest.raises(ConfigurationError, match=r"followed once .* public\.t .*copies nothing to files"):
        fed.run()
    without.run()
    fed.write("DROP TABLE t")
    without.run()
    fed.write("ALTER TABLE plain RENAME TO t")
    with pytest.raises(SourceError, match=r"public\.plain has taken the name public\.t, .*copies nothing to files"):
        fed.run()


@gated
def test_what_a_lane_finds_that_no_copy_ends_is_told_with_what_leads_on(
    fed: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed.write("CREATE TABLE p (id integer PRIMARY KEY) PARTITION BY RANGE (id)")
    fed.run()
    for module in (preparing, opening):
        monkeypatch.setattr(module, "FIRST_CAPTURE_CHANGES", 1)
    fed.write(*(f"UPDATE t SET v = '{number}' WHERE id = 1" for number in range(5)))
    fed.write(
        "CREATE TABLE part PARTITION OF p DEFAULT",
        "INSERT INTO p VALUES (1)",
        "ALTER TABLE p DETACH PARTITION part",
        "DROP TABLE part",
    )
    fed.capture("r")
    plan(fed.config, fed.target)
    opened = fed.open("r")
    with pytest.raises(FatalError, match=r"a partition that is none any more.*copies nothing to files"):
        fed.close(opened, fed.apply(opened))


def test_copied_rows_come_with_the_run_whose_interval_has_the_snapshots_time(
    source_dsn: str, ledger_dsn: str, tmp_path: Path
) -> None:
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'there')")
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"))
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=f"files+file://{tmp_path}/lake", ledger_dsn=ledger_dsn)
    ((now,),) = rig.rows("SELECT now()", side="source")
    rig.run(interval=Interval(start=now - timedelta(hours=1), end=now))
    assert not rig.comparison().equal
    ((later,),) = rig.rows("SELECT clock_timestamp()", side="source")
    rig.run(interval=Interval(start=now, end=later))
    assert rig.comparison().equal


@gated
def test_a_first_run_beside_another_one_is_to_wait(fed: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(session._AT_SOURCE, "lock_timeout", "100ms")
    other = replace(fed.having(pipeline="other"), target_dsn=f"files+file://{tmp_path}/other")
    with (
        closing(open_capture(fed.source, fed.config)) as capturing,
        capturing.source.preparing(),
        pytest.raises(LeaseBusy, match=r"another run has been preparing .* run SELECT pg_terminate_backend\(\d+\)"),
    ):
        other.prepare()
    assert other.prepare().log_id == fed.prepare().log_id


@pytest.mark.long
@pytest.mark.parametrize("target", ["files+file", "delta+file"])
@pytest.mark.parametrize("consistency", Consistency)
def test_spark_loads_what_was_copied(
    source_dsn: str,
    ledger_dsn: str,
    tmp_path: Path,
    spark_server: ServerLease,
    spark_session_id: str,
    target: str,
    consistency: Consistency,
) -> None:
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE plain (v text)")
    execute(source_dsn, "INSERT INTO t SELECT i, repeat('v', i % 50) FROM generate_series(1, 50000) i")
    execute(source_dsn, "INSERT INTO plain SELECT i % 7 FROM generate_series(1, 1000) i")
    (tmp_path / "lake").mkdir()
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"), channels=3, consistency=consistency)
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=f"{target}://{tmp_path}/lake", ledger_dsn=ledger_dsn)
    access = ConnectAccess(url=spark_server.url, session_id=spark_session_id)
    rig = replace(rig, stage=lambda opened: open_stage(access=access, config=rig.config, target=rig.target))
    rig.prepare()
    rig.write("UPDATE t SET v = 'later' WHERE id % 100 = 0", "DELETE FROM t WHERE id % 7 = 0")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


def _relations(url: str) -> dict[str, Relation]:
    return {relation.name: relation for relation in open_reader(url).state().relations}
