"""One log, and the slot that feeds it, serve several pipelines into several targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.admin.purge import purge_log
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.capture.values import Prepared
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError, OwnershipLost, SourceError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.finding import errors
from tests.support.rig import Rig, execute
from tests.support.variants import gated

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
Second = Callable[..., Rig]


@pytest.fixture
def first(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="first",
        slot="both",
        log_url=str(tmp_path / "log"),
        channels=2,
        start=Start.EMPTY,
        epoch_max_changes=50,
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both(TABLE)
    return made


@pytest.fixture
def second(first: Rig, target_server: PostgresServer) -> Second:
    """Another pipeline of the same log, into a database of its own."""

    def make(**changes: object) -> Rig:
        dsn = target_server.create_database(f"second_{uuid4().hex[:8]}")
        execute(dsn, TABLE)
        return replace(first, target_dsn=dsn).having(pipeline="second", **changes)

    return make


def refused(rig: Rig, says: str) -> None:
    """By `check` and by the first run, which registers nothing."""
    found = errors(check_pipeline(rig.config, rig.source, rig.target).findings)
    assert any(says in finding.what for finding in found), found
    with pytest.raises((ConfigurationError, SourceError), match=says):
        rig.run()
    with closing(open_pipeline(rig.target, rig.config.pipeline)) as session:
        assert session.state() is None


@gated
def test_two_pipelines_apply_one_log_and_purge_waits_for_the_slower(first: Rig, second: Second) -> None:
    first.prepare()
    other = second(channels=3, partitioner="shard", shard_by=(("*", "id"),))
    other.prepare()
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert first.rows(slots, side="source") == [("both",)]
    first.write("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 200) n", "UPDATE t SET v = 'b' WHERE id < 100")
    first.run()
    assert first.comparison().equal
    assert not other.comparison().equal
    first.write("DELETE FROM t WHERE id > 150")
    first.run()
    ends = [first.target, other.target]
    assert purge_log(first.config.log_url, ends).purged_seqno == -1
    other.run()
    assert other.comparison().equal
    assert first.comparison().equal
    assert purge_log(first.config.log_url, ends).purged_seqno == open_reader(first.config.log_url).state().last_seqno
    first.write("UPDATE t SET v = 'c'")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Rig.run, (first, other)))
    assert first.comparison().equal
    assert other.comparison().equal
    status = read_status(other.target, "second", other.config.log_url, other.source)
    assert not any("both" in warning.what for warning in status.warnings)


def test_a_pipeline_joins_a_log_that_began_empty_at_its_beginning(first: Rig, second: Second) -> None:
    first.write("INSERT INTO t VALUES (0, 'there before')")
    refused(first, "start=empty takes none")
    first.write("DELETE FROM t")
    first.prepare()
    first.write("INSERT INTO t SELECT n, 'a' FROM generate_series(1, 50) n", "DELETE FROM t WHERE id < 10")
    first.run()
    late = second()
    late.run()
    assert late.comparison().equal


@gated
def test_a_close_that_was_led_to_another_target_of_the_log_is_red(first: Rig, second: Second) -> None:
    """The DAG was edited meanwhile. That target has a pipeline of this name, too, and its last generation's number."""
    first.prepare()
    other = second().having(pipeline="first")
    other.prepare()
    first.write("INSERT INTO t VALUES (1, 'a')")
    first.capture("its own")
    opened = first.open("its own")
    other.run("another")
    with pytest.raises(OwnershipLost, match=f"generation {opened.generation} is over"):
        other.close(opened)
    first.close(opened, first.apply(opened))
    assert first.comparison().equal


@gated
def test_a_purged_log_is_not_joined(first: Rig, second: Second) -> None:
    first.prepare()
    first.write("INSERT INTO t VALUES (1, 'a')")
    first.run()
    purge_log(first.config.log_url, [first.target])
    refused(second(), "what was before is purged")


@gated
@pytest.mark.parametrize("start", [Start.EQUAL, Start.COPY])
def test_a_target_of_another_moment_does_not_join(first: Rig, second: Second, start: Start) -> None:
    first.prepare()
    first.write("INSERT INTO t VALUES (1, 'a')")
    joining = second(start=start)
    if start is Start.EQUAL:
        execute(joining.target_dsn, "INSERT INTO t VALUES (1, 'a')")
    refused(joining, "is there already")
    first.run()
    refused(joining, "is there already")


@gated
def test_a_target_does_not_join_a_log_whose_tables_had_rows(first: Rig, second: Second) -> None:
    first.both("INSERT INTO t VALUES (0, 'there before')")
    first.having(start=Start.EQUAL).run()
    refused(second(), "may have had rows")


def test_a_target_that_waits_for_another_first_run_does_not_join_its_log(
    first: Rig, second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin at once: when it looks for the log there is none yet."""
    first.both("INSERT INTO t VALUES (0, 'there before')")
    waiting, prepare = second(), Capture.prepare

    def behind_the_other(capture: Capture, *arguments: Any, **named: Any) -> Prepared:
        monkeypatch.setattr(Capture, "prepare", prepare)
        first.having(start=Start.EQUAL).prepare()
        return prepare(capture, *arguments, **named)

    monkeypatch.setattr(Capture, "prepare", behind_the_other)
    with pytest.raises(ConfigurationError, match="may have had rows"):
        waiting.prepare()
    with closing(open_pipeline(waiting.target, "second")) as session:
        assert session.state() is None


@gated
def test_targets_that_are_equal_at_the_beginning_join_it(first: Rig, second: Second) -> None:
    first.both("INSERT INTO t VALUES (0, 'there before')")
    other = second(start=Start.EQUAL)
    execute(other.target_dsn, "INSERT INTO t VALUES (0, 'there before')")
    first.having(start=Start.EQUAL).prepare()
    other.prepare()
    first.write("UPDATE t SET v = 'new'")
    for rig in (first.having(start=Start.EQUAL), other):
        rig.run()
        assert rig.comparison().equal


def test_a_slot_that_feeds_another_log_is_refused(first: Rig, second: Second, tmp_path: Path) -> None:
    first.prepare()
    refused(second(log_url=str(tmp_path / "elsewhere")), "slot both feeds log")


@gated
def test_tables_that_only_others_follow_stay_in_the_publication(first: Rig, second: Second) -> None:
    first.both("CREATE TABLE u (id int PRIMARY KEY)")
    first.prepare()
    narrow = second(tables=TablePatterns(exclude=("public.u",)))
    execute(narrow.target_dsn, "CREATE TABLE u (id int PRIMARY KEY)")
    with pytest.raises(ConfigurationError, match=r"no longer match: public\.u") as alone:
        first.having(tables=narrow.config.tables).prepare()
    assert (alone.value.hint or "").startswith('Run ALTER PUBLICATION "both" DROP TABLE ONLY "public"."u"')
    first.run()
    with pytest.raises(ConfigurationError, match=r"no longer match: public\.u(?s:.*)since first may follow them"):
        narrow.run()
    wide = narrow.having(tables=first.config.tables)
    first.write("INSERT INTO t VALUES (1, 'a')", "INSERT INTO u VALUES (1)")
    for rig in (first, wide):
        rig.run()
        assert rig.comparison().equal


@gated
def test_dropping_one_leaves_the_slot_to_the_others(first: Rig, second: Second) -> None:
    first.prepare()
    other = second()
    other.prepare()

    def drop(rig: Rig, log_url: str | None = None) -> str:
        removal = drop_pipeline(
            rig.config.pipeline, rig.source, rig.target, slot="both", log_url=log_url, with_log=log_url is not None
        )
        return "; ".join(leftover.what for leftover in removal.left)

    assert "stream both, whose log other pipelines may read" in drop(first)
    assert "which pipeline second at" in drop(first, first.config.log_url)
    first.write("INSERT INTO t VALUES (1, 'a')")
    other.run()
    assert other.comparison().equal
    assert drop(other, other.config.log_url) == ""
    assert other.rows("SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'both'", side="source") == []
    assert not Path(other.config.log_url).exists()


@gated
def test_hints_lead_on_where_the_slot_is_not_the_pipelines_own(first: Rig) -> None:
    first.prepare()
    first.write("INSERT INTO t VALUES (1, '1')")
    first.run()
    both = ["--source", first.source_dsn, "--log-url", first.config.log_url]
    told = CliRunner().invoke(app, ["adopt-source", "--pipeline", "first", *both])
    assert "is the log's source already" in told.output
    first.write("ALTER TABLE t ALTER v TYPE varchar(9)")
    with pytest.raises(SourceError) as refused:
        first.run()
    found = re.findall(r"`parallel-apply ((?:recopy|vouch) .+?)`", refused.value.hint or "")
    assert [command.split()[0] for command in found] == ["recopy", "vouch"]
    for command in found:
        at = [*both, "--target", first.target_dsn] if "recopy" in command else both
        told = CliRunner().invoke(app, [*shlex.split(command), *at])
        assert told.exit_code == (0 if "recopy" in command else 1), told.output
    assert "nothing that was done to public.t is in doubt [op vouch, pipeline first]" in told.output
    wrong = CliRunner().invoke(app, [*shlex.split(found[1]), *both, "--slot", "other"])
    assert "its slot is both, while slot other is asked for" in " ".join(wrong.output.split())
    execute(first.target_dsn, "ALTER TABLE t ALTER v TYPE varchar(9)")
    first.run()
    assert first.comparison().equal
