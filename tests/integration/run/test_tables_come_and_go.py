"""Tables that a pipeline follows later than from its beginning: what the target has of them is what the source had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, TargetError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.finding import errors
from airflow_parallel_apply.pipeline.source.postgres.setup import new_tables, prepare
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

NEW = "CREATE TABLE n (id int PRIMARY KEY)"


@pytest.fixture
def pipeline(rig: Rig) -> Rig:
    made = rig.having(tables=TablePatterns(), start=Start.EQUAL)
    made.both("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    return made


def copy_anew(rig: Rig, table: str) -> None:
    recopy_tables(rig.config, rig.source, rig.target, [("public", table)], report=lambda progress: None)


def equal_after_run(rig: Rig) -> None:
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_table_that_was_left_out_for_a_while_is_copied_anew_though_it_has_no_rows_any_more(pipeline: Rig) -> None:
    pipeline.both("CREATE TABLE other (id int)")
    pipeline.run()
    without = pipeline.having(tables=TablePatterns(exclude=("public.t",)))
    with pytest.raises(ConfigurationError, match="ALTER PUBLICATION"):
        without.run()
    pipeline.write("ALTER PUBLICATION parallel_apply_p DROP TABLE t")
    without.run()
    pipeline.write("DELETE FROM t")
    without.run()
    with pytest.raises(ConfigurationError, match=r"without rows, which this pipeline followed once.*public\.t"):
        pipeline.run()
    copy_anew(pipeline, "t")
    pipeline.write("INSERT INTO t VALUES (3)")
    equal_after_run(pipeline)


def test_a_new_table_that_is_renamed_while_it_is_taken_in_is_taken_in_under_its_new_name(
    pipeline: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.run()
    pipeline.both(NEW)
    taken_in = new_tables.follow_new

    def behind_a_rename(*given: Any, **named: Any) -> tuple[str, ...]:
        monkeypatch.undo()
        pipeline.both("ALTER TABLE n RENAME TO m")
        return taken_in(*given, **named)

    monkeypatch.setattr(prepare, "follow_new", behind_a_rename)
    pipeline.run()
    pipeline.write("INSERT INTO m VALUES (1)")
    equal_after_run(pipeline)


@gated
def test_rows_of_a_table_that_nobody_follows_are_passed_over_though_it_was_published_for_a_while(pipeline: Rig) -> None:
    pipeline.both(NEW)
    execute(pipeline.target_dsn, "INSERT INTO n VALUES (7)")
    without = pipeline.having(tables=TablePatterns(exclude=("public.n",)))
    without.run()
    without.write("ALTER PUBLICATION parallel_apply_p ADD TABLE n", "INSERT INTO n VALUES (1)")
    without.transaction(
        "INSERT INTO t VALUES (3)", "UPDATE n SET id = 7", "TRUNCATE n, t", "INSERT INTO n VALUES (8)",
        "INSERT INTO t VALUES (4)",
    )  # fmt: skip
    without.write("ALTER PUBLICATION parallel_apply_p DROP TABLE n", "INSERT INTO t VALUES (5)")
    equal_after_run(without)
    assert without.rows("SELECT id FROM n") == [(7,)]
    assert {relation.name for relation in open_reader(without.config.log_url).state().relations} == {"public.t"}
    with pytest.raises(ConfigurationError, match=r"new tables with rows.*recopy .*--table public\.n"):
        pipeline.run()
    copy_anew(pipeline, "n")
    equal_after_run(pipeline)


def publish_for_a_while(rig: Rig, table: str, *statements: str) -> None:
    """Somebody else does."""
    publication = "ALTER PUBLICATION parallel_apply_p"
    rig.write(f"{publication} ADD TABLE {table}", *statements, f"{publication} DROP TABLE {table}")


@gated
def test_rows_of_a_table_that_is_followed_no_longer_are_passed_over_as_well(pipeline: Rig) -> None:
    pipeline.run()
    pipeline.both(NEW)
    pipeline.write("INSERT INTO n VALUES (1)")
    copy_anew(pipeline, "n")
    pipeline.write("INSERT INTO n VALUES (2)")
    equal_after_run(pipeline)
    without = pipeline.having(tables=TablePatterns(exclude=("public.n",)))
    without.write("ALTER PUBLICATION parallel_apply_p DROP TABLE n")
    without.run()
    publish_for_a_while(without, "n", "INSERT INTO n VALUES (3)", "DELETE FROM n WHERE id = 1")
    without.write("INSERT INTO t VALUES (3)")
    equal_after_run(without)
    assert without.rows("SELECT id FROM n ORDER BY id") == [(1,), (2,)]
    copy_anew(pipeline, "n")
    equal_after_run(pipeline)


@gated
def test_a_table_that_is_left_out_has_all_that_was_written_to_it_before(pipeline: Rig) -> None:
    pipeline.both("CREATE TABLE other (id int PRIMARY KEY)")
    pipeline.run()
    pipeline.write("INSERT INTO t VALUES (3)", "ALTER PUBLICATION parallel_apply_p DROP TABLE t")
    without = pipeline.having(tables=TablePatterns(exclude=("public.t",)))
    without.prepare()
    publish_for_a_while(without, "t", "INSERT INTO t VALUES (4)", "DELETE FROM t WHERE id = 1")
    equal_after_run(without)
    assert without.rows("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]


@gated
def test_the_only_table_is_renamed_and_then_dropped(pipeline: Rig) -> None:
    named = pipeline.having(tables=TablePatterns(include=("public.t",)))
    named.run()
    named.write("INSERT INTO t VALUES (3)", "ALTER TABLE t RENAME TO u")
    with pytest.raises(ConfigurationError, match=r"the patterns no longer match: public\.u"):
        named.run()
    named.write("DROP TABLE u")
    named.run()
    assert named.rows("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]


@gated
@pytest.mark.parametrize("is_known_before", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_table_counts_from_where_it_is_followed_on(pipeline: Rig, *, is_known_before: bool) -> None:
    pipeline.both(NEW)
    pipeline.having(tables=TablePatterns(exclude=("public.n",))).run()
    if not is_known_before:
        pipeline.both("DROP TABLE n", NEW)
    publish_for_a_while(pipeline, "n", "INSERT INTO n VALUES (1)", "INSERT INTO t VALUES (3)")
    pipeline.write("DELETE FROM n")
    equal_after_run(pipeline)
    pipeline.write("INSERT INTO n VALUES (2)", "INSERT INTO t VALUES (4)")
    equal_after_run(pipeline)


@gated
def test_rows_that_a_partition_sent_before_it_was_one_are_passed_over(pipeline: Rig) -> None:
    pipeline.both(
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE n (id int PRIMARY KEY)",
    )
    pipeline.having(tables=TablePatterns(exclude=("public.n",))).run()
    publish_for_a_while(pipeline, "n", "INSERT INTO n VALUES (11), (12)")
    pipeline.write("DELETE FROM n")
    pipeline.both("ALTER TABLE parted ATTACH PARTITION n FOR VALUES FROM (10) TO (20)")
    equal_after_run(pipeline)
    pipeline.write("INSERT INTO parted VALUES (1), (12)")
    equal_after_run(pipeline)


@gated
@pytest.mark.parametrize("is_copied", [True, pytest.param(False, marks=GATED)])
def test_a_new_table_without_rows_has_none_at_the_target(pipeline: Rig, *, is_copied: bool) -> None:
    pipeline.run()
    pipeline.both(NEW)
    execute(pipeline.target_dsn, "INSERT INTO n VALUES (1)")
    found = errors(check_pipeline(pipeline.config, pipeline.source, pipeline.target).findings)
    assert [finding.where for finding in found] == ["public.n"]
    with pytest.raises(TargetError, match=r"public\.n has rows, and the source's table had none"):
        pipeline.run()
    if is_copied:
        pipeline.write("INSERT INTO n VALUES (2)")
        copy_anew(pipeline, "n")
    else:
        execute(pipeline.target_dsn, "DELETE FROM n")
    equal_after_run(pipeline)
    for change in ("INSERT INTO n VALUES (3)", "DELETE FROM n"):
        pipeline.write(change)
        equal_after_run(pipeline)


@gated
def test_a_table_that_is_new_to_one_target_of_a_log_has_no_rows_there(
    pipeline: Rig, target_server: PostgresServer, tmp_path: Path
) -> None:
    shared = pipeline.having(slot="both", log_url=str(tmp_path / "shared"))
    shared.prepare()
    other = Rig(
        config=shared.having(pipeline="other").config,
        source_dsn=shared.source_dsn,
        target_dsn=target_server.create_database("tables_come_and_go"),
    )
    execute(other.target_dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", NEW)
    other.run()
    shared.both(NEW)
    shared.write("INSERT INTO n VALUES (1)", "DELETE FROM n")
    equal_after_run(shared)
    shared.write("INSERT INTO n VALUES (2)")
    equal_after_run(shared)
    execute(other.target_dsn, "INSERT INTO n VALUES (7)")
    with pytest.raises(TargetError, match=r"public\.n has rows"):
        other.run()
    execute(other.target_dsn, "DELETE FROM n")
    equal_after_run(other)


@gated
def test_rows_of_its_children_are_not_a_new_tables_own(pipeline: Rig) -> None:
    pipeline.both("CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    pipeline.write("INSERT INTO child VALUES (1)")
    execute(pipeline.target_dsn, "INSERT INTO child VALUES (1)")
    pipeline.having(tables=TablePatterns(exclude=("public.parent",))).run()
    pipeline.write("INSERT INTO t VALUES (3)")
    equal_after_run(pipeline)
    pipeline.write("INSERT INTO parent VALUES (2)")
    equal_after_run(pipeline)
