"""A target made anew at the beginning of its log, which is its own: what the log began with is not there any more."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Consistency, Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, TargetError
from airflow_parallel_apply.pipeline.model.finding import errors
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated


@pytest.fixture
def pipeline(rig: Rig) -> Rig:
    made = rig.having(tables=TablePatterns())
    made.both("CREATE TABLE t (id int, v text)", "INSERT INTO t VALUES (1, 'there before')")
    return made


def replace_target(rig: Rig, *rows: str) -> None:
    """By one that holds these rows and has never heard of the pipeline."""
    execute(rig.target_dsn, "DROP SCHEMA parallel_apply CASCADE", "TRUNCATE t", *rows)


def refused(rig: Rig, says: str) -> None:
    found = errors(check_pipeline(rig.config, rig.source, rig.target).findings)
    assert any(says in finding.what for finding in found), found
    with pytest.raises(ConfigurationError, match=says) as refusal:
        rig.run()
    assert "parallel-apply drop" in str(refusal.value)


def begins_anew(rig: Rig) -> None:
    removal = drop_pipeline(
        rig.config.pipeline, rig.source, rig.target, log_url=rig.config.log_url, with_log=True, force=False
    )
    assert not removal.left
    execute(rig.target_dsn, "TRUNCATE t")
    again = rig.having(start=Start.COPY)
    again.run()
    assert again.comparison().equal


def test_one_that_is_equal_now_does_not_get_again_what_was_written_since_the_beginning(pipeline: Rig) -> None:
    first = pipeline.having(start=Start.EQUAL)
    first.prepare()
    first.write("INSERT INTO t VALUES (2, 'since')")
    replace_target(first, "INSERT INTO t VALUES (1, 'there before'), (2, 'since')")
    refused(first, "would get these changes again")
    begins_anew(first)


@gated
def test_one_that_is_equal_at_the_beginning_goes_on_from_there(pipeline: Rig) -> None:
    first = pipeline.having(start=Start.EQUAL)
    first.prepare()
    replace_target(first, "INSERT INTO t VALUES (1, 'there before')")
    first.prepare()
    first.write("INSERT INTO t VALUES (2, 'since')")
    first.run()
    assert first.comparison().equal


@gated
@pytest.mark.parametrize("start", [Start.EQUAL, Start.COPY])
def test_an_empty_one_does_not_begin_where_there_were_rows(pipeline: Rig, start: Start) -> None:
    first = pipeline.having(start=start)
    execute(first.target_dsn, *(["TRUNCATE t"] if start is Start.COPY else []))
    first.prepare()
    replace_target(first)
    refused(first.having(start=Start.EMPTY), "may have had rows when it began")
    begins_anew(first)


@gated
@pytest.mark.usefixtures("new_sessions")
def test_a_target_database_that_was_renamed_leaves_an_entry_that_hints_say_how_to_forget(
    pipeline: Rig, target_server: PostgresServer
) -> None:
    target_server.create_database("former_name")
    former = replace(pipeline.having(start=Start.COPY), target_dsn=target_server.dsn("former_name"))
    execute(former.target_dsn, "CREATE TABLE t (id int, v text)")
    former.run()
    execute(target_server.dsn(), "ALTER DATABASE former_name RENAME TO later_name")
    later = replace(former, target_dsn=target_server.dsn("later_name"))
    later.run()

    def copy_anew() -> None:
        recopy_tables(later.config, later.source, later.target, [("public", "t")], report=lambda progress: None)

    with pytest.raises(ConfigurationError, match="others read the log") as refused:
        copy_anew()
    (command,) = re.findall(r"`(rm .*?)`", str(refused.value.hint))
    subprocess.run(shlex.split(command), check=True)
    copy_anew()
    later.run()
    assert later.comparison().equal
    removal = drop_pipeline("p", later.source, later.target, log_url=later.config.log_url, with_log=True, force=False)
    assert not removal.left


@gated
@pytest.mark.parametrize(("lost", "consistency"), [("", Consistency.CHANNEL), ("WHERE channel = 1", Consistency.EPOCH)])
def test_one_without_some_of_its_positions_applies_nothing_twice(
    pipeline: Rig, lost: str, consistency: Consistency
) -> None:
    first = pipeline.having(start=Start.EQUAL, channels=2, consistency=consistency)
    first.prepare()
    first.write("INSERT INTO t VALUES (2, 'since')")
    first.run()
    execute(first.target_dsn, f"DELETE FROM parallel_apply.position {lost}")
    first.write("INSERT INTO t VALUES (3, 'behind')")
    for again in (first, first.having(channels=3)):
        with pytest.raises(TargetError, match=r"positions in .* are gone.*parallel-apply drop"):
            again.run()
    begins_anew(first)


@gated
@pytest.mark.parametrize(
    ("start", "gone"),
    [
        (Start.COPY, ("DELETE FROM parallel_apply.pipeline",)),
        pytest.param(Start.COPY, ("DROP SCHEMA parallel_apply CASCADE", "TRUNCATE t"), marks=GATED),
        pytest.param(Start.EMPTY, ("DROP SCHEMA parallel_apply CASCADE",), marks=GATED),
    ],
)
def test_one_that_its_ledger_elsewhere_knows_better_applies_nothing_from_the_beginning(
    pipeline: Rig, ledger_dsn: str, start: Start, gone: Sequence[str]
) -> None:
    pipeline.both("TRUNCATE t")
    first = replace(pipeline.having(start=start), ledger_dsn=ledger_dsn)
    first.write(*(["INSERT INTO t VALUES (1, 'there before')"] if start is Start.COPY else []))
    first.run()
    first.write("INSERT INTO t VALUES (2, 'since')")
    first.run()
    execute(first.target_dsn, *gone)
    first.write("INSERT INTO t VALUES (3, 'behind')")
    with pytest.raises(TargetError, match=r"positions in .* are gone.*parallel-apply drop"):
        first.run()
    if start is Start.COPY:
        found = errors(check_pipeline(first.config, first.source, first.target).findings)
        assert any("are gone" in finding.what for finding in found), found
    begins_anew(first)


@gated
def test_one_that_is_empty_gets_all_rows_again_from_a_log_that_has_them(pipeline: Rig, ledger_dsn: str) -> None:
    pipeline.both("TRUNCATE t")
    first = replace(pipeline.having(start=Start.EMPTY), ledger_dsn=ledger_dsn)
    first.prepare()
    first.write("INSERT INTO t VALUES (2, 'since')")
    first.run()
    execute(first.target_dsn, "DROP SCHEMA parallel_apply CASCADE", "TRUNCATE t")
    first.run()
    assert first.comparison().equal


@gated
def test_one_that_is_back_before_the_pipeline_was_started_anew_is_told_from_its_ledger(
    pipeline: Rig, ledger_dsn: str
) -> None:
    first = replace(pipeline.having(start=Start.EQUAL), ledger_dsn=ledger_dsn)
    first.prepare()
    first.write("INSERT INTO t VALUES (2, 'since')")
    execute(first.target_dsn, "UPDATE parallel_apply.pipeline SET log_id = 'former'")
    with pytest.raises(TargetError, match=r"has applied log former, .*parallel-apply drop"):
        first.run()
    found = errors(check_pipeline(first.config, first.source, first.target).findings)
    assert any("has applied log former" in finding.what for finding in found), found
    begins_anew(first)
