"""Critical transactions that lie close together: one serial unit, in source order, and what stops one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.epoch import Serial, Unit
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.target.open import open_target
from airflow_parallel_apply.pipeline.target.postgres.target import PostgresTarget
from airflow_parallel_apply.pipeline.target.steps import Step
from tests.support.eight_channels import UNIQUE, make_rig, require_equal
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    made = make_rig(source_dsn, target_dsn, tmp_path, lanes=2).having(ddl=DdlPolicy.APPLY, epoch_max_changes=10_000)
    made.both(UNIQUE, "CREATE TABLE other (id integer PRIMARY KEY, t timestamptz DEFAULT now())")
    made.prepare()
    return made


def write_densely(rig: Rig) -> None:
    """Values handed on between channels around truncates and definitions, with small transactions in between."""
    rig.write("INSERT INTO t SELECT i, i, 'a' FROM generate_series(1, 40) i", "INSERT INTO other VALUES (1)")
    for step in range(6):
        rig.write(
            f"UPDATE t SET id = id + 100 WHERE id % 7 = {step}",
            "TRUNCATE other",
            f"INSERT INTO other SELECT i FROM generate_series(1, {step + 1}) i",
        )
        # Each row takes the value of the one before it.
        rig.transaction("UPDATE t SET u = u + 1000", "UPDATE t SET u = (u - 999) % 41")
        rig.write(f"DELETE FROM t WHERE u = {step}", f"INSERT INTO t VALUES ({1000 + step}, {step}, 'new')")
    ddl = "ALTER TABLE t ADD COLUMN w integer DEFAULT 7"
    rig.transaction(ddl, rig.ddl(ddl), "UPDATE t SET v = 'b' WHERE id % 2 = 0")
    rig.write("UPDATE t SET w = id", "TRUNCATE other", "INSERT INTO other VALUES (9)", "UPDATE t SET id = -id")


def positions(rig: Rig) -> tuple[Position, ...]:
    target = open_target(rig.target, "p")
    try:
        return target.positions()
    finally:
        target.close()


def test_they_are_one_serial_unit_with_what_is_between_them(rig: Rig) -> None:
    write_densely(rig)
    rig.capture("run")
    opened = rig.open("run")
    reports = rig.apply(opened)
    rig.close(opened, reports)
    assert sum(report["serial_units"] for report in reports) == 1
    assert sum(report["units"] for report in reports) == 0
    require_equal(rig)


@gated
def test_ddl_that_is_refused_stops_the_run_right_before_it_and_after_it_by_hand_the_rest_follows(rig: Rig) -> None:
    refusing = rig.having(ddl=DdlPolicy.REFUSE)
    write_densely(rig)
    with pytest.raises(FatalError, match=r"which this pipeline refuses: .*ALTER TABLE t ADD") as told:
        refusing.run()
    (seqno,) = {position.seqno for position in positions(rig)}
    assert f"seqno {seqno + 1}" in str(told.value)
    ids = [(number,) for number in sorted(_ids_before_the_ddl())]
    assert rig.rows("SELECT id FROM t ORDER BY id") == ids
    with pytest.raises(FatalError, match="refuses"):
        refusing.run()
    assert {position.seqno for position in positions(rig)} == {seqno}
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN w integer DEFAULT 7")
    rig.having(ddl=DdlPolicy.SKIP).run()
    require_equal(rig)


@gated
def test_rows_that_a_transaction_wrote_before_its_using_are_told_of(rig: Rig) -> None:
    """Nobody reaches them before the run that applies them."""
    altering = "ALTER TABLE other ALTER COLUMN id TYPE bigint USING id * 100"
    sent = rig.ddl(altering)
    rig.write("INSERT INTO other VALUES (1)")
    rig.run()
    rig.transaction("INSERT INTO other VALUES (2)", altering, sent)
    with pytest.raises(FatalError, match="rows that the transaction wrote before its statement") as told:
        rig.having(ddl=DdlPolicy.REFUSE).run()
    execute(rig.target_dsn, altering)
    skip_as_the_hint_says(rig, told.value)
    execute(rig.target_dsn, "UPDATE other SET id = id * 100 WHERE id = 2")
    rig.transaction("UPDATE other SET id = id + 1", altering, sent)
    rig.run()
    require_equal(rig)
    rig.transaction(altering, sent)
    with pytest.raises(FatalError, match="which this pipeline refuses") as told:
        rig.having(ddl=DdlPolicy.REFUSE).run()
    assert "wrote before" not in str(told.value)


@gated
def test_settings_of_a_ddl_s_text_do_not_reach_the_transactions_behind_it(rig: Rig) -> None:
    execute(
        rig.target_dsn,
        "CREATE TABLE fired (id integer)",
        "CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO fired VALUES (NEW.id); RETURN NEW; END'",
        "CREATE TRIGGER fire AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fire()",
    )
    rig.write(
        "INSERT INTO t VALUES (1)",
        "TRUNCATE other",
        rig.ddl("SET session_replication_role = origin"),
        "INSERT INTO t VALUES (2)",
    )
    rig.run()
    require_equal(rig)
    assert rig.rows("SELECT * FROM fired") == []


@gated
def test_a_lane_that_is_lost_between_two_parts_leaves_the_rest_to_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_densely(rig)
    commit = PostgresTarget.commit

    def lost(target: PostgresTarget, unit: Unit, steps: Sequence[Step]) -> None:
        commit(target, unit, steps)
        if isinstance(unit.kind, Serial):
            raise psycopg.InterfaceError("lost")

    monkeypatch.setattr(PostgresTarget, "commit", lost)
    with pytest.raises(psycopg.InterfaceError):
        rig.run("run", lanes=1)
    monkeypatch.undo()
    (between,) = {position.seqno for position in positions(rig)}
    assert 0 <= between < rig.run("run").stop_seqno
    require_equal(rig)


def _ids_before_the_ddl() -> set[int]:
    """As `write_densely` leaves them, told once more in Python."""
    rows = {number: number for number in range(1, 41)}
    for step in range(6):
        rows = {number + 100 if number % 7 == step else number: u for number, u in rows.items()}
        rows = {number: (u + 1) % 41 for number, u in rows.items()}
        rows = {number: u for number, u in rows.items() if u != step}
        rows[1000 + step] = step
    return set(rows)
