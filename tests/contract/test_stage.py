"""Promises of every apply stage, from a real log into a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import LogError, OwnershipLost, TargetError, Unavailable
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Merging, Serial, Unit
from airflow_parallel_apply.pipeline.target.postgres import PostgresTarget
from tests.contract.stages import STAGES, MakeStage
from tests.support.staging import (
    KEYS,
    TRANSACTIONS,
    ended_sessions,
    eventually,
    in_background,
    log_to_stage,  # noqa: F401  # a fixture
    staged_rows,
    target_of_staging,  # noqa: F401  # a fixture
    unit,
    unit_of,
    waiting_sessions,
)
from tests.support.variants import gated
from tests.support.written_log import Change, append, make_log


@pytest.fixture(params=sorted(STAGES))
def make_stage(
    request: pytest.FixtureRequest, target_dsn: str, log_url: str, target: PostgresTarget
) -> Iterator[MakeStage]:
    admitted, made = STAGES[request.param](request), []

    def make(*, log_url: str = log_url, target: Endpoint | None = None) -> Stage:
        made.append(admitted(log_url=log_url, target=target or Endpoint(conn_id="t", url=target_dsn)))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


def test_two_channels_together_stage_the_net_change_of_every_key(make_stage, log_url, target_dsn):
    stage = make_stage()
    both = [stage.stage(unit(log_url, channel=channel)) for channel in (0, 1)]
    first, second = (staged_rows(target_dsn, staged) for staged in both)
    assert not first.keys() & second.keys()
    net = first | second
    assert sum(staged.row_count for staged in both) == TRANSACTIONS
    # Inserted and deleted inside the unit: nothing is left of them.
    assert sorted(map(int, net)) == list(range(5, KEYS))
    last = TRANSACTIONS - KEYS - 5
    assert net["20"] == ("I", f"v{max(number for number in range(last) if number % KEYS == 20)}")


@gated
def test_a_serial_unit_takes_the_fragnos_it_names_and_leaves_out_statements(make_stage, tmp_path, target_dsn, target):
    url = str(tmp_path / "serial")
    make_log(url)
    append(url, 0, [[Change("I", 1, "before"), Change("T"), Change("I", 2, "a"), Change("U", 2, "b"), Change("I", 3)]])
    serial = Unit(
        pipeline="demo",
        generation=1,
        kind=Serial(first_fragno=1, last_fragno=3),
        channels=4,
        token="token",
        after_seqno=-1,
        last_seqno=0,
        row_count=2,
    )
    staged = make_stage(log_url=url).stage(serial)
    assert staged_rows(target_dsn, staged) == {"2": ("I", "b")}


@gated
def test_the_unit_of_a_merge_point_takes_each_channels_rows_behind_its_own_position(make_stage, log_url, target_dsn):
    stage = make_stage()
    after = (KEYS - 1, 2 * KEYS + 3)
    apart = [unit(log_url, channel=channel, after=after[channel]) for channel in (0, 1)]
    together = replace(
        apart[0],
        kind=Merging(after),
        after_seqno=min(after),
        row_count=sum(part.row_count for part in apart),
    )
    merged = staged_rows(target_dsn, stage.stage(together))
    first, second = (staged_rows(target_dsn, stage.stage(part)) for part in apart)
    assert merged == first | second


@gated
def test_a_unit_that_continues_another_knows_which_rows_existed(make_stage, log_url, target_dsn):
    staged = make_stage().stage(unit(log_url, channels=1, after=KEYS - 1))
    operations = {key: operation for key, (operation, _) in staged_rows(target_dsn, staged).items()}
    assert operations == {str(key): "D" if key < 5 else "U" for key in range(KEYS)}


@gated
def test_a_plan_that_counts_other_rows_than_the_log_holds_is_refused(make_stage, log_url):
    whole = unit(log_url, channels=1)
    with pytest.raises(LogError, match=f"found {TRANSACTIONS} rows where the plan has {TRANSACTIONS + 1}"):
        make_stage().stage(replace(whole, row_count=TRANSACTIONS + 1))


@gated
def test_a_value_that_the_target_refuses_names_table_column_and_seqno(make_stage, log_url, target_dsn):
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE t ALTER COLUMN v TYPE integer USING 0")
    with pytest.raises(TargetError) as told:
        make_stage().stage(unit(log_url, channels=1))
    error = told.value
    assert (error.pipeline, error.channel, error.table, error.column) == ("demo", 0, "public.t", "v")
    assert error.seqno is not None
    assert "\n" not in str(error)


@gated
def test_an_ended_session_under_a_claim_that_lasts_may_be_staged_again(make_stage, log_url, target_dsn):
    stage, whole = make_stage(), unit(log_url, channels=1)
    with psycopg.connect(target_dsn, autocommit=True) as blocker, psycopg.connect(target_dsn, autocommit=True) as other:
        # Whoever stages has to look at the table; this holds it up until its session has been ended.
        with blocker.transaction():
            blocker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            staging = in_background(lambda: stage.stage(whole))
            eventually(lambda: ended_sessions(other) > 0)
        with pytest.raises(Unavailable):
            staging()
    assert stage.stage(whole).row_count == TRANSACTIONS


@gated
def test_cancel_ends_the_job_and_the_stage_goes_on_with_the_next(make_stage, log_url, target_dsn):
    stage, whole = make_stage(), unit(log_url, channels=1)
    with psycopg.connect(target_dsn, autocommit=True) as blocker, psycopg.connect(target_dsn, autocommit=True) as other:
        blocker.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        staging = in_background(lambda: stage.stage(whole))
        eventually(lambda: waiting_sessions(other) > 0)
        stage.cancel()
        with pytest.raises(OwnershipLost, match="cancelled"):
            staging()
    assert stage.stage(whole).row_count == TRANSACTIONS


@gated
def test_what_is_staged_twice_waits_twice_and_touches_no_row(make_stage, log_url, target_dsn):
    stage, whole = make_stage(), unit(log_url, channels=1)
    first, again = stage.stage(whole), stage.stage(whole)
    assert not {table.staging for table in first.tables} & {table.staging for table in again.tables}
    assert staged_rows(target_dsn, first) == staged_rows(target_dsn, again)
    with psycopg.connect(target_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_staged_changes_are_counted_by_what_they_do(make_stage, log_url):
    staged = make_stage().stage(unit(log_url, channels=1, after=KEYS - 1))
    assert staged.row_count == TRANSACTIONS - KEYS
    assert sum(table.inserts for table in staged.tables) == 0
    assert sum(table.updates for table in staged.tables) == KEYS - 5
    assert sum(table.deletes for table in staged.tables) == 5


@gated
def test_a_target_that_cannot_be_reached_may_be_tried_again(make_stage, log_url):
    stage = make_stage(target=Endpoint(conn_id="t", url="host=127.0.0.1 port=1 user=postgres dbname=t"))
    with pytest.raises(Unavailable):
        stage.stage(unit(log_url))


def test_a_damaged_file_is_told(make_stage, log_url):
    (path,) = open_reader(log_url).row_files(-1, 10)
    content = bytearray(Path(path).read_bytes())
    content[len(content) // 2] ^= 1
    Path(path).chmod(0o600)
    Path(path).write_bytes(content)
    with pytest.raises(LogError, match="checksum"):
        make_stage().stage(unit_of(TRANSACTIONS))


@gated
def test_a_cancellation_with_nothing_under_way_harms_nothing(make_stage, log_url):
    stage, whole = make_stage(), unit(log_url, channels=1)
    stage.cancel()
    assert stage.stage(whole).row_count == TRANSACTIONS
    stage.cancel()
    assert stage.stage(whole).row_count == TRANSACTIONS
