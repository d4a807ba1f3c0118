"""Dropping removes what is a pipeline's own and nothing else, says what is left, and may be said twice."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import psycopg
import pytest
from click.testing import Result
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import LeaseBusy, LogError, OwnershipLost
from airflow_parallel_apply.pipeline.log.open import log_exists
from airflow_parallel_apply.pipeline.log.remove import remove_log
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.finding import Side
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.router.plan import plan
from tests.support.ddl_messages import ddl, install
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig, execute
from tests.support.variants import gated

AWAY = "host=127.0.0.1 port=1 dbname=x"


@pytest.fixture(name="rig")
def doomed(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(pipeline="doomed", log_url=str(tmp_path / "log"), channels=2, lanes=1, start=Start.EMPTY)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    made.prepare()
    made.write("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 20) i")
    made.run()
    return made


def dropped(rig: Rig, *, with_log: bool = False, force: bool = False) -> Removal:
    return drop_pipeline(
        rig.config.pipeline, rig.source, rig.target, log_url=rig.config.log_url, with_log=with_log, force=force
    )


def slots(rig: Rig) -> list[tuple[str]]:
    return rig.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()", side="source")


def publications(rig: Rig) -> list[tuple[str]]:
    return rig.rows("SELECT pubname FROM pg_publication", side="source")


def schemas(rig: Rig) -> list[tuple[str]]:
    return rig.rows("SELECT nspname FROM pg_namespace WHERE nspname = 'parallel_apply'")


def nothing_is_left(rig: Rig) -> bool:
    return not (slots(rig) or publications(rig) or schemas(rig))


def test_the_last_pipeline_takes_everything_along_but_the_tables(rig: Rig) -> None:
    removal = dropped(rig, with_log=True)
    assert removal.left == ()
    assert len(removal.done) == 6
    assert nothing_is_left(rig)
    assert not Path(rig.config.log_url).exists()
    assert rig.comparison().equal
    assert dropped(rig, with_log=True) == Removal()


@gated
def test_what_was_dropped_can_be_started_anew_under_the_same_name(rig: Rig) -> None:
    dropped(rig, with_log=True)
    rig.both("TRUNCATE t")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'again')")
    rig.run()
    assert rig.comparison().equal


@gated
def test_another_pipeline_of_the_same_databases_stays_whole(rig: Rig, tmp_path: Path) -> None:
    other = rig.having(pipeline="doomed_not", log_url=str(tmp_path / "other"))
    execute(rig.source_dsn, "CREATE TABLE u (id int PRIMARY KEY)")
    execute(rig.target_dsn, "CREATE TABLE u (id int PRIMARY KEY)")
    other = other.having(tables=TablePatterns(include=("public.u",)))
    other.prepare()
    removal = dropped(rig)
    assert [leftover.side for leftover in removal.left] == [Side.LOG]
    assert slots(rig) == [("parallel_apply_doomed_not",)]
    assert rig.rows("SELECT pipeline FROM parallel_apply.pipeline") == [("doomed_not",)]
    assert rig.rows("SELECT count(*) FROM parallel_apply.task WHERE starts_with(queue, 'doomed/')") == [(0,)]
    other.write("INSERT INTO u VALUES (1)")
    other.run()
    assert other.comparison().equal


@gated
@pytest.mark.parametrize("use", ["a source that sends DDL", "a queue", "a first run that has just copied"])
def test_the_schema_stays_while_others_use_it(rig: Rig, use: str) -> None:
    if use == "a first run that has just copied":
        execute(
            rig.target_dsn,
            "INSERT INTO parallel_apply.copy (pipeline, copy_id, loaded, finished) VALUES ('other', 'c', now(), now())",
        )
    elif use == "a queue":
        execute(
            rig.target_dsn,
            "INSERT INTO parallel_apply.task (id, queue, version, at, claims, attempt, err, value, created, modified) "
            "VALUES (gen_random_uuid(), 'doomed_not/0', 1, now(), 0, 0, '', '{}', now(), now())",
        )
    else:
        install(rig.target_dsn)
    assert [leftover.side for leftover in dropped(rig).left] == [Side.LOG]
    assert rig.rows("SELECT pipeline FROM parallel_apply.pipeline") == []
    if use == "a queue":
        assert rig.rows("SELECT queue FROM parallel_apply.task") == [("doomed_not/0",)]
    elif use == "a source that sends DDL":
        execute(rig.target_dsn, ddl("SELECT 1"))


@gated
def test_a_live_run_is_not_dropped_unless_by_force(rig: Rig) -> None:
    rig.write("UPDATE t SET v = 'b'")
    rig.capture("alive")
    plan(rig.config, rig.target)
    opened = run.open_run(rig.config, rig.source, rig.target, owner="alive", run_id="alive")
    with pytest.raises(LeaseBusy, match="alive"):
        dropped(rig)
    assert slots(rig) == [("parallel_apply_doomed",)]
    assert log_exists(rig.config.log_url)
    assert dropped(rig, force=True).done
    assert nothing_is_left(rig)
    before = rig.rows("SELECT * FROM t ORDER BY id")
    for late in (lambda: rig.apply(opened), lambda: rig.close(opened)):
        with pytest.raises(OwnershipLost, match="the pipeline was removed, or this is not its target"):
            late()
    assert rig.rows("SELECT * FROM t ORDER BY id") == before


def test_a_pipeline_whose_first_run_copies_is_not_dropped_unless_by_force(rig: Rig) -> None:
    with psycopg.connect(rig.target_dsn, autocommit=True) as copying:
        copying.execute("SELECT pg_advisory_lock(hashtextextended('parallel_apply copy doomed', 0))")
        with pytest.raises(LeaseBusy, match="prepare, is copying the source's rows"):
            dropped(rig)
        assert slots(rig) == [("parallel_apply_doomed",)]
        assert dropped(rig, force=True).done
    assert nothing_is_left(rig)


@gated
def test_a_lane_whose_pipeline_is_dropped_says_so(rig: Rig) -> None:
    rig.write("UPDATE t SET v = 'b'")
    rig.capture("before")
    plan(rig.config, rig.target)
    opened = rig.open("before")
    stage = _Sleeping(rig.config.log_url, rig.target)
    with ThreadPoolExecutor(max_workers=1) as pool:
        lane = pool.submit(replace(rig, stage=lambda _: stage).lane, opened, 0)
        try:
            assert stage.began.wait(120)
            dropped(rig, force=True)
        finally:
            stage.goes_on.set()
        with pytest.raises(OwnershipLost, match=r"the pipeline was removed.* Clear the task capture"):
            lane.result()


@gated
@pytest.mark.parametrize("with_log", [True, False])
def test_a_lane_of_before_applies_nothing_to_a_pipeline_that_was_begun_anew(
    rig: Rig, tmp_path: Path, *, with_log: bool
) -> None:
    """Generations are counted from 1 again, so that both runs have the same number."""
    rig.write("UPDATE t SET v = 'b'")
    rig.capture("before")
    plan(rig.config, rig.target)
    before = rig.open("before")
    stage = _Sleeping(rig.config.log_url, rig.target)
    with ThreadPoolExecutor(max_workers=1) as pool:
        lane = pool.submit(replace(rig, stage=lambda _: stage).lane, before, 0)
        try:
            assert stage.began.wait(120)
            dropped(rig, with_log=with_log, force=True)
            rig.both("TRUNCATE t")
            anew = rig if with_log else rig.having(log_url=str(tmp_path / "another log"))
            anew.prepare()
            anew.write("INSERT INTO t SELECT i, 'c' FROM generate_series(1, 20) i")
            anew.run()
            anew.write("UPDATE t SET v = 'd'")
            anew.capture("now")
            plan(anew.config, anew.target)
            now = anew.open("now")
            assert now.generation == before.generation
        finally:
            stage.goes_on.set()
        with pytest.raises(OwnershipLost):
            lane.result()
    with pytest.raises(OwnershipLost):
        rig.close(before)
    anew.close(now, anew.apply(now))
    assert anew.rows("SELECT DISTINCT v FROM t") == [("d",)]
    assert anew.comparison().equal


class _Sleeping(LocalStage):
    """Stages nothing until it is told to go on."""

    def __init__(self, log_url: str, target: Endpoint) -> None:
        super().__init__(log_url, target)
        self.began, self.goes_on = threading.Event(), threading.Event()

    def stage(self, unit: Unit) -> StagedUnit:
        self.began.set()
        self.goes_on.wait(120)
        return super().stage(unit)


@gated
@pytest.mark.parametrize("side", [Side.SOURCE, Side.TARGET])
def test_a_side_that_is_away_is_told_with_commands_that_do_the_rest(rig: Rig, side: Side) -> None:
    away = replace(rig, source_dsn=AWAY) if side is Side.SOURCE else replace(rig, target_dsn=AWAY)
    removal = dropped(away, with_log=True)
    assert removal.done
    assert {leftover.side for leftover in removal.left} == {side, Side.LOG}
    assert log_exists(rig.config.log_url)
    dsn = rig.source_dsn if side is Side.SOURCE else rig.target_dsn
    if side is Side.TARGET:
        execute(dsn, "INSERT INTO parallel_apply.copy (pipeline, copy_id) VALUES ('doomed', 'c')")
    execute(dsn, *(leftover.command for leftover in removal.left if leftover.side is side))
    if side is Side.TARGET:
        assert rig.rows("SELECT pipeline FROM parallel_apply.copy") == []
    assert not slots(rig)
    assert not publications(rig)
    again = dropped(rig, with_log=True)
    assert again.left == ()
    assert nothing_is_left(rig)


@gated
def test_a_slot_and_a_publication_of_somebody_else_stay(rig: Rig, source_server: PostgresServer) -> None:
    dropped(rig)
    execute(rig.source_dsn, "CREATE PUBLICATION parallel_apply_doomed")
    elsewhere = source_server.create_database("elsewhere")
    execute(elsewhere, "SELECT pg_create_logical_replication_slot('parallel_apply_doomed', 'pgoutput')")
    removal = dropped(rig)
    assert removal.done == ()
    assert len([leftover for leftover in removal.left if leftover.side is Side.SOURCE]) == 2
    assert publications(rig) == [("parallel_apply_doomed",)]
    execute(elsewhere, "SELECT pg_drop_replication_slot('parallel_apply_doomed')")


@gated
def test_a_log_that_another_target_reads_stays(rig: Rig, target_server: PostgresServer) -> None:
    second = replace(rig, target_dsn=target_server.create_database("second_reader")).having(start=Start.EMPTY)
    execute(second.target_dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    second.prepare()
    removal = dropped(rig, with_log=True)
    assert "second_reader" in removal.left[-1].what
    assert log_exists(rig.config.log_url)


def test_another_slots_log_is_never_removed(rig: Rig) -> None:
    with pytest.raises(LogError, match="it stays"):
        remove_log(rig.config.log_url, stream="parallel_apply_other")
    Path(rig.config.log_url, "notes.txt").write_text("mine")
    assert dropped(rig, with_log=True).left == ()
    assert [path.name for path in Path(rig.config.log_url).iterdir()] == ["notes.txt"]


@gated
def test_a_removal_of_the_log_that_died_is_taken_up_and_never_looks_like_a_new_log(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = shutil.copytree(rig.config.log_url, tmp_path / "whole")
    deaths = 0
    for step in count(1):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", _dying(at_call=step))
            try:
                dropped(rig, with_log=True)
            except KeyboardInterrupt:
                deaths += 1
                assert log_exists(rig.config.log_url)
            else:
                break
        assert dropped(rig, with_log=True).left == ()
        assert not Path(rig.config.log_url).exists()
        shutil.copytree(whole, rig.config.log_url)
    assert deaths > 5
    assert not Path(rig.config.log_url).exists()


def _dying(*, at_call: int) -> Callable[..., None]:
    calls = count(1)
    unlink = Path.unlink

    def dying(path: Path, missing_ok: bool = False) -> None:
        if next(calls) == at_call:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    return dying


def call(rig: Rig, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(
        app,
        ["drop", "--pipeline", rig.config.pipeline, "--log-url", rig.config.log_url, *arguments],
        input=answer,
        env={"PARALLEL_APPLY_SOURCE": rig.source_dsn, "PARALLEL_APPLY_TARGET": rig.target_dsn},
    )


@gated
def test_the_command_asks_first_and_says_what_it_did(rig: Rig) -> None:
    assert call(rig, answer="n\n").exit_code == 1
    unasked = call(rig, answer="")
    assert unasked.exit_code == 1
    assert "--yes" in unasked.output
    assert slots(rig)
    told = call(rig, answer="y\n")
    assert told.exit_code == 0, told.output
    assert "dropped slot parallel_apply_doomed" in told.output
    assert "left: the log at" in told.output
    assert "rm -r" in told.output
    again = call(rig, "--yes", "--log", "--json")
    assert json.loads(again.output)["done"] == [f"removed the log at {rig.config.log_url}"]
    assert "everything is gone already" in call(rig, "--yes").output


@gated
def test_the_command_exits_with_1_when_a_side_is_away(rig: Rig) -> None:
    told = call(replace(rig, target_dsn=AWAY), "--yes")
    assert told.exit_code == 1
    assert "target: DELETE FROM" in told.output
