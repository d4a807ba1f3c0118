"""Copies anew that are cut off, met by others, or lost by one of those that know of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.copy.postgres import recopy
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    LeaseBusy,
    ParallelApplyError,
    PlanError,
    TargetError,
)
from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry, register_reader
from tests.integration.copy.recopying import again, change, require_green_and_equal, rig_of_two_tables  # noqa: F401  # a fixture
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants


class Cut(BaseException):
    """As a kill at this line."""


def cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch, *tables: str, line: str = "write_recopied") -> None:
    """By default between the log and the target."""

    def cut(*_: Any, **__: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(recopy, line, cut)
        with pytest.raises(Cut):
            again(rig, *tables)


def hinted(rig: Rig) -> list[str]:
    """The tables that the next run wants to be copied."""
    with pytest.raises(ParallelApplyError) as refused:
        rig.run()
    return re.findall(r"--table public\.(\w+)", refused.value.hint or "")


@pytest.mark.parametrize(
    "line",
    variants(
        ["pass_over", "write_recopied", "require_generation"],
        seldom=["pass_over", "require_generation"],
        gated=["write_recopied"],
    ),
)
def test_cut_off_at_any_line_it_is_run_again(rig: Rig, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    require_green_and_equal(rig)
    change(rig, "captured")
    rig.capture("captured")

    cut_off(rig, monkeypatch, "t", line=line)
    if line == "write_recopied":
        assert not check_pipeline(rig.config, rig.source, rig.target).is_good
        with pytest.raises(TargetError, match=r"public\.t") as refused:
            rig.run()
        assert "parallel-apply recopy --pipeline p --table public.t" in (refused.value.hint or "")
        again(rig, "t")
    require_green_and_equal(rig)


@gated
def test_a_partition_that_is_gone_since_its_copy_was_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.write(
        "CREATE TABLE p (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
    )
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    rig.write("INSERT INTO p SELECT i, 'first' FROM generate_series(50, 150) i")
    rig.capture("captured")
    cut_off(rig, monkeypatch, "p")
    rig.write("UPDATE p SET v = 'behind' WHERE id % 2 = 0", "ALTER TABLE p DETACH PARTITION p_1", "DROP TABLE p_1")
    assert not check_pipeline(rig.config, rig.source, rig.target).is_good
    assert hinted(rig) == ["p"]
    again(rig, "p")
    rig.write("INSERT INTO p VALUES (160, 'last')", "DELETE FROM t WHERE id < 5")
    require_green_and_equal(rig)


@gated
def test_a_table_that_is_gone_since_its_copy_was_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    require_green_and_equal(rig)
    change(rig, "captured")
    rig.capture("captured")
    cut_off(rig, monkeypatch, "t")
    rig.write("UPDATE t SET v = 'behind' WHERE id % 2 = 0", "DROP TABLE t", "UPDATE u SET v = 'behind' WHERE id > 90")
    assert hinted(rig) == ["t"]
    assert again(rig, "t") == ()
    require_green_and_equal(rig)
    rig.write("UPDATE u SET v = 'last' WHERE id < 10")
    require_green_and_equal(rig)


@gated
def test_a_table_that_is_renamed_since_its_copy_was_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    require_green_and_equal(rig)
    change(rig, "captured")
    rig.capture("captured")
    cut_off(rig, monkeypatch, "t")
    rig.write("UPDATE t SET v = 'behind' WHERE id % 2 = 0", "ALTER TABLE t RENAME TO t_2")
    assert hinted(rig) == ["t"]
    with pytest.raises(ConfigurationError, match=r"public\.t is part of public\.t_2 now") as refused:
        again(rig, "t")
    assert "--table public.t_2" in (refused.value.hint or "")
    execute(rig.target_dsn, "ALTER TABLE t RENAME TO t_2")
    again(rig, "t_2")
    rig.write("UPDATE t_2 SET v = 'last' WHERE id % 5 = 0")
    require_green_and_equal(rig)


def test_no_run_and_no_other_copy_goes_on_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.capture("owner")
    opened = rig.open("owner")
    with pytest.raises(LeaseBusy):
        again(rig, "t")
    rig.close(opened, rig.apply(opened))
    load = recopy.Recopy._load
    met: list[Exception] = []

    def meet(*arguments: Any, **named: Any) -> Sequence[int]:
        for attempt in (lambda: rig.open("another"), lambda: again(rig, "u"), lambda: drop(rig)):
            with pytest.raises(LeaseBusy) as busy:
                attempt()
            met.append(busy.value)
        change(rig, "captured meanwhile")
        # Somebody has edited its DAG.
        rig.having(channels=3).capture("captures meanwhile")
        return load(*arguments, **named)

    monkeypatch.setattr(recopy.Recopy, "_load", meet)
    again(rig, "t")
    assert len(met) == 3
    require_green_and_equal(rig)


def drop(rig: Rig) -> None:
    drop_pipeline(rig.config.pipeline, rig.source, rig.target, log_url=rig.config.log_url)


def test_no_copy_is_made_for_a_log_that_another_target_has_come_to_read_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_green_and_equal(rig)
    change(rig, "captured")
    load = recopy.Recopy._load

    def meet(*arguments: Any, **named: Any) -> Sequence[int]:
        another = LogReaderEntry(pipeline="another", server="1", database="other", place="other")
        register_reader(rig.config.log_url, another)
        return load(*arguments, **named)

    monkeypatch.setattr(recopy.Recopy, "_load", meet)
    with pytest.raises(ConfigurationError, match=r"others read the log.*: pipeline another at"):
        again(rig, "t")
    require_green_and_equal(rig)


@gated
def test_a_target_restored_to_before_the_copy_is_refused(rig: Rig) -> None:
    require_green_and_equal(rig)
    again(rig, "t")
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute("DELETE FROM parallel_apply.recopy")
    with pytest.raises(TargetError, match="does not hold"):
        rig.run()


@gated
def test_a_log_that_knows_less_copies_than_the_ledger_ends_the_run(rig: Rig) -> None:
    again(rig, "t")
    execute(
        rig.target_dsn,
        "INSERT INTO parallel_apply.recopy (pipeline, schema_name, table_name, recopy_id, copied_offset, rows)"
        " SELECT pipeline, schema_name, 'u', 'newer', copied_offset, 0 FROM parallel_apply.recopy",
    )
    rig.write("UPDATE t SET v = 'behind' WHERE id = 7")
    with pytest.raises(PlanError, match=r"copied anew, and the log does not: public\.u \[") as refused:
        rig.run()
    assert "recopy" in (refused.value.hint or "")
    again(rig, "u")
    require_green_and_equal(rig)
