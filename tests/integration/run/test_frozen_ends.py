"""A run's end is frozen once: whoever asks for another one, or for another way with DDL, does so with another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError, SourceError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig
from tests.support.variants import GATED, gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY)")
    made.prepare()
    return made


def wal_end(rig: Rig) -> str:
    ((lsn,),) = rig.rows("SELECT pg_current_wal_flush_lsn()::text", side="source")
    return str(lsn)


def test_a_cleared_run_is_not_given_another_end(rig: Rig) -> None:
    """With `ddl=skip` it would pass over all the DDL up to its own end, which nobody has looked at."""
    rig.write("INSERT INTO t VALUES (1)")
    until = wal_end(rig)
    rig.write("INSERT INTO t VALUES (2)")
    frozen = rig.capture("r").until
    for step in (rig.capture, rig.open):
        with pytest.raises(ConfigurationError, match=f"end is frozen .* and is not {until}"):
            step("r", until=until)
    assert rig.run("another", until=until).stop_seqno == 0
    assert rig.run("r", until=frozen).stop_seqno == 1


def test_open_knows_the_end_that_was_asked_for_where_capture_has_frozen_none(rig: Rig) -> None:
    rig.write("INSERT INTO t VALUES (1)")
    until = wal_end(rig)
    rig.write("INSERT INTO t VALUES (2)")
    rig.capture("earlier")
    assert rig.open("r", until=until).until_seqno == 0


@gated
def test_lanes_do_with_ddl_as_the_run_was_opened_with(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.write(ddl("ANALYZE t"))
    rig.capture("r")
    opened = rig.open("r")
    edited = rig.having(ddl=DdlPolicy.SKIP)
    edited.apply(opened)
    with pytest.raises(ParallelApplyError, match="the source sent DDL, which this pipeline refuses"):
        edited.close(opened)


@gated
def test_a_run_with_an_end_that_was_asked_for_takes_nothing_behind_it_as_done(rig: Rig) -> None:
    """The catalog shows tables as they are later than that end."""
    rig.both("ALTER TABLE t ADD v int")
    rig.write("INSERT INTO t VALUES (1, 1)")
    rig.run()
    until = wal_end(rig)
    rig.write("ALTER TABLE t ALTER v TYPE numeric USING v * 100")
    with pytest.raises(SourceError, match="was rewritten while v changed"):
        rig.having(ddl=DdlPolicy.SKIP).run(until=until)
    rig.having(ddl=DdlPolicy.SKIP).run()


@gated
@pytest.mark.parametrize("again", ["capture", pytest.param("open", marks=GATED)])
def test_with_an_end_of_its_own_a_run_takes_nothing_behind_that_as_done(rig: Rig, again: str) -> None:
    rig.both("ALTER TABLE t ADD v int")
    rig.write("INSERT INTO t VALUES (1, 1)")
    rig.run()
    skipping = rig.having(ddl=DdlPolicy.SKIP)
    skipping.capture("r")
    rig.write("ALTER TABLE t ALTER v TYPE numeric USING v * 100")
    with pytest.raises(ParallelApplyError, match=r"was rewritten while v changed.* trigger another run with ddl=skip"):
        getattr(skipping, again)("r")
    skipping.run("another")
