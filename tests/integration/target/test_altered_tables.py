"""Tables of the target that somebody is altering as rows come for them: that is waited for, and then seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, Start
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.router.plan import plan
from tests.support.local_copier import LocalCopier
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

DEADLINE_SECONDS = 120
ROUNDING = ("ALTER TABLE t ALTER COLUMN v TYPE numeric(10, 1)",)
CHANGING = (
    "CREATE TRIGGER g BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION changes()",
    "ALTER TABLE t ENABLE ALWAYS TRIGGER g",
)
ADDING = (
    "CREATE TRIGGER g AFTER TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION adds()",
    "ALTER TABLE t ENABLE ALWAYS TRIGGER g",
)
WRITES = {
    "merged": ("UPDATE t SET v = v + 0.123",),
    "inserted straight": ("INSERT INTO t SELECT i, i + 0.123 FROM generate_series(11, 20) i",),
    "replayed": ("TRUNCATE t; INSERT INTO t SELECT i, i + 0.123 FROM generate_series(1, 10) i",),
}
MODES = {
    "channel": {},
    "leader_merge": {"consistency": Consistency.EPOCH, "epoch_protocol": EpochProtocol.LEADER_MERGE},
    "two_phase": {"consistency": Consistency.EPOCH, "epoch_protocol": EpochProtocol.TWO_PHASE},
}


@pytest.fixture
def begun(rig: Rig) -> Rig:
    """Behind a run."""
    made = rig.having(channels=1)
    make(made)
    made.prepare()
    made.write("INSERT INTO t SELECT i, i FROM generate_series(1, 10) i")
    made.run()
    return made


def make(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v numeric)")
    execute(
        rig.target_dsn,
        "CREATE FUNCTION changes() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := 0; RETURN NEW; END'",
        "CREATE FUNCTION adds() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO t VALUES (0); RETURN NULL; END'",
    )


@contextmanager
def altering(rig: Rig, statements: Sequence[str]) -> Iterator[None]:
    """Altered in a transaction that ends once somebody waits for it, or with the block."""
    ended = threading.Event()

    def end() -> None:
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
        with psycopg.connect(rig.target_dsn, autocommit=True) as looking:
            while looking.execute(waiting, [looking.info.dbname]).fetchone() is None and not ended.wait(0.02):
                continue
        connection.commit()

    with psycopg.connect(rig.target_dsn) as connection, ThreadPoolExecutor(1) as pool:
        for statement in statements:
            connection.execute(statement)
        done = pool.submit(end)
        try:
            yield
        finally:
            ended.set()
            done.result(DEADLINE_SECONDS)


def refused(apply: Callable[[], Any], why: str) -> None:
    with pytest.raises(TargetError, match=why):
        apply()


def ends_equal(rig: Rig, *statements: str) -> None:
    execute(rig.target_dsn, *statements)
    rig.run()
    assert rig.comparison().equal


@pytest.mark.parametrize("mode", variants(MODES, seldom=["leader_merge", "two_phase"]))
@pytest.mark.parametrize("written", WRITES)
def test_a_trigger_that_a_table_is_getting_is_seen(begun: Rig, written: str, mode: str) -> None:
    rig = begun.having(**MODES[mode])
    rig.transaction(*WRITES[written])
    rig.capture("r")
    plan(rig.config, rig.target)
    opened = rig.open("r")
    with altering(rig, CHANGING):
        reports = rig.apply(opened)
    refused(partial(rig.close, opened, reports), "the trigger g of the target's table changes what is applied")
    ends_equal(rig, "DROP TRIGGER g ON t")


@pytest.mark.parametrize("written", variants(WRITES, seldom=["inserted straight", "replayed"]))
def test_a_table_that_is_losing_its_name_meanwhile_is_told_as_such(begun: Rig, written: str) -> None:
    begun.transaction(*WRITES[written])
    begun.capture("r")
    opened = begun.open("r")
    with altering(begun, ["ALTER TABLE t RENAME TO gone"]):
        reports = begun.apply(opened)
    refused(
        partial(begun.close, opened, reports),
        "somebody renamed, moved or dropped it|is called public.gone at the target",
    )
    refused(begun.run, "recopy --pipeline p --table public.t")
    ends_equal(begun, "ALTER TABLE gone RENAME TO t")


@gated
def test_a_trigger_that_adds_rows_behind_a_truncation_is_seen(begun: Rig) -> None:
    begun.write("TRUNCATE t")
    begun.capture("r")
    opened = begun.open("r")
    with altering(begun, ADDING):
        reports = begun.apply(opened)
    refused(partial(begun.close, opened, reports), "the trigger g of t changes what is applied")
    ends_equal(begun, "DROP TRIGGER g ON t")


@gated
def test_a_type_that_a_column_is_getting_behind_staging_takes_no_other_value(begun: Rig) -> None:
    begun.write(*WRITES["merged"])

    class AlteredBehind(LocalStage):
        def stage(self, unit: Unit) -> StagedUnit:
            staged = super().stage(unit)
            if not alterations:
                alterations.append(altering(begun, ROUNDING))
                alterations[0].__enter__()
            return staged

    alterations: list[Any] = []
    stage = partial(AlteredBehind, begun.config.log_url, begun.target, config=begun.config)
    refused(replace(begun, stage=lambda opened: stage()).run, "stores a value of the source's numeric as one with")
    alterations[0].__exit__(None, None, None)
    ends_equal(begun, "ALTER TABLE t ALTER COLUMN v TYPE numeric")


@gated
@pytest.mark.parametrize("altered", [ROUNDING, CHANGING])
def test_a_table_that_is_altered_before_its_rows_are_copied_is_looked_at_then(rig: Rig, altered: Sequence[str]) -> None:
    rig = rig.having(start=Start.COPY)
    make(rig)
    rig.write("INSERT INTO t SELECT i, i + 0.123 FROM generate_series(1, 10) i")

    class Late(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            execute(rig.target_dsn, *altered)
            super().copy(order, parts)

    late = replace(rig, copier=lambda rig: Late(source=rig.source, target=rig.target))
    refused(late.prepare, "stores a value of the source's numeric|changes what is applied")
    execute(rig.target_dsn, "ALTER TABLE t ALTER COLUMN v TYPE numeric", "DROP TRIGGER IF EXISTS g ON t")
    rig.prepare()
    ends_equal(rig)


@gated
@pytest.mark.parametrize("altered", [ROUNDING, pytest.param(CHANGING, marks=pytest.mark.long)])
def test_a_table_that_is_being_altered_is_copied_anew_as_it_is_then(begun: Rig, altered: Sequence[str]) -> None:
    begun.write(*WRITES["merged"])
    begun.run()
    again = partial(
        recopy_tables, begun.config, begun.source, begun.target, [("public", "t")], report=lambda progress: None
    )
    with altering(begun, altered):
        refused(again, "stores a value of the source's numeric|changes what is applied")
    execute(begun.target_dsn, "ALTER TABLE t ALTER COLUMN v TYPE numeric", "DROP TRIGGER IF EXISTS g ON t")
    again()
    ends_equal(begun)
