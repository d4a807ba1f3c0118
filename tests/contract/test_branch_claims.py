"""Protocol `two_phase`: who may prepare, commit and roll back the branches of a group, and who ends what hangs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import psycopg
import pytest
from psycopg import sql

from airflow_parallel_apply.pipeline.admin.recover import recover_pipeline
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.check.capabilities import branch_findings
from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, PipelineConfig
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.tasks import OrderedWork
from airflow_parallel_apply.pipeline.errors import LeaseBusy, OwnershipLost, StagingLost, TargetError, Unavailable
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, Serial, StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.finding import Severity
from airflow_parallel_apply.pipeline.run.protocol import protocol_of
from airflow_parallel_apply.pipeline.target.postgres import drop, target
from airflow_parallel_apply.pipeline.target.postgres.load import preparing
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.contract.branches import Make, kept, left_over, make_branches, prepared
from tests.contract.test_groups import rows, staging
from tests.support.generation import Generation
from tests.support.local_stage import LocalStage
from tests.support.variants import gated
from tests.support.written_log import Change, append

CLAIM = "a claim"

pytestmark = pytest.mark.parametrize("steered_by", ["in the target"], indirect=True)


@pytest.fixture(autouse=True)
def nothing_is_left(target_dsn: str) -> Iterator[None]:
    yield
    assert left_over(target_dsn) == []


@pytest.fixture
def generation(make: Make, log_url: str) -> Generation:
    """Its first group has all channels' rows."""
    append(log_url, 0, [[Change("I", key, str(key))] for key in range(100)])
    return make_branches(make, limits=FeedLimits())


def part(generation: Generation, token: str = CLAIM) -> Unit:
    """All rows of the first group."""
    work = OrderedWork.of_task(generation.queue.tasks(generation.names.serial)[0]).work
    return Unit(
        pipeline="p",
        generation=generation.names.generation,
        kind=GroupPart(work.epoch, None, prepares=True),
        channels=generation.config.channels,
        token=token,
        after_seqno=work.first_seqno - 1,
        last_seqno=work.last_seqno,
        row_count=work.rows,
        epoch=work.epoch,
    )


def prepare(generation: Generation, token: str = CLAIM) -> StagedUnit:
    unit = part(generation, token)
    assert generation.target.take_part(unit)
    return LocalStage(generation.config.log_url, generation.endpoint).stage(unit)


def whole(staged: StagedUnit) -> Unit:
    """Commit it."""
    return replace(staged.unit, kind=Serial(), token="the commit's")


def decide(generation: Generation, monkeypatch: pytest.MonkeyPatch) -> StagedUnit:
    """A group up to its record: whoever wrote it is gone."""
    staged = prepare(generation)
    unit = whole(staged)
    generation.target.take(None, generation=unit.generation, token=unit.token, group=unit.epoch)
    with monkeypatch.context() as dying:
        dying.setattr(target, "settle", refuse_to_settle)
        with pytest.raises(ZeroDivisionError):
            generation.target.commit(unit, [Merge(staged)])
    assert len(prepared(generation.endpoint.url)) == len(staged.tables)
    return staged


def refuse_to_settle(*args: object) -> bool:
    raise ZeroDivisionError


def drop_in_vain(generation: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off before it removes the positions."""
    with monkeypatch.context() as dying:
        dying.setattr(drop, "forget_pipeline", refuse_to_settle)
        with pytest.raises(ZeroDivisionError):
            generation.target.drop(force=True)


def roll_back(dsn: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)))


# --- claims ---


def test_an_attempt_takes_over_what_the_one_before_it_prepared_and_another_job_only_stages(
    generation: Generation, target_dsn: str
) -> None:
    unit = part(generation)
    assert generation.target.take_part(unit)
    stage = LocalStage(generation.config.log_url, generation.endpoint)
    first = stage.attempt(unit, job="job", attempt="first")
    names = prepared(target_dsn)
    assert sorted(table.staging for table in first.tables) == names
    twin = stage.attempt(unit, job="job", attempt="twin")
    assert [table.staging for table in twin.tables] == [table.staging for table in first.tables]
    other = stage.attempt(unit, job="another job", attempt="third")
    assert sorted(table.staging for table in other.tables) == sorted(staging(target_dsn))
    assert prepared(target_dsn) == names
    generation.lane()
    assert set(rows(target_dsn)) == set(range(100))


@gated
def test_what_a_former_claim_prepared_is_rolled_back_and_its_sessions_prepare_no_more(
    generation: Generation, target_dsn: str
) -> None:
    former = prepare(generation)
    later = prepare(generation, "another claim")
    assert prepared(target_dsn) == sorted(table.staging for table in later.tables)
    with pytest.raises(OwnershipLost):
        LocalStage(generation.config.log_url, generation.endpoint).stage(former.unit)
    assert prepared(target_dsn) == sorted(table.staging for table in later.tables)
    generation.lane()
    assert generation.seqnos() == [99] * 3


@gated
@pytest.mark.parametrize("behind", [0, pytest.param(1, marks=pytest.mark.long)])
def test_nothing_is_prepared_any_more_once_the_commit_has_the_claim(
    generation: Generation, target_dsn: str, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """An attempt stood still, and the lane went on without it; or, behind, with the smaller groups of a queue that was
    lost. What it prepared would hold rows that the commit waits for.
    """
    unit = part(generation)
    assert unit.group is not None
    assert generation.target.take_part(unit)
    stands, goes_on = Event(), Event()

    def stand_still(connection: Connection) -> None:
        stands.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(preparing, "require_held", stand_still)
    stage = LocalStage(generation.config.log_url, generation.endpoint)
    with ThreadPoolExecutor(1) as pool:
        attempt = pool.submit(stage.attempt, unit, job="job", attempt="first")
        assert stands.wait(60)
        generation.target.take(None, generation=unit.generation, token="the commit's", group=unit.group - behind)
        goes_on.set()
        with pytest.raises(Unavailable):
            attempt.result()
    monkeypatch.undo()
    assert prepared(target_dsn) == []
    generation.lane()
    assert set(rows(target_dsn)) == set(range(100))


@gated
def test_a_commit_whose_branch_is_gone_stages_again(generation: Generation, target_dsn: str) -> None:
    staged = prepare(generation)
    unit = whole(staged)
    generation.target.take(None, generation=unit.generation, token=unit.token, group=unit.epoch)
    roll_back(target_dsn, staged.tables[1].staging)
    with pytest.raises(StagingLost):
        generation.target.commit(unit, [Merge(staged)])
    assert rows(target_dsn) == {}
    generation.lane()
    assert set(rows(target_dsn)) == set(range(100))


# --- what was decided ---


@gated
@pytest.mark.parametrize("who", ["another lane", "another run", "a run behind a drop that was cut off"])
def test_whoever_comes_next_commits_what_was_decided(
    generation: Generation, target_dsn: str, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    decided = decide(generation, monkeypatch)
    if who == "a run behind a drop that was cut off":
        drop_in_vain(generation, monkeypatch)
    if who == "another lane":
        generation.target.take(None, generation=decided.unit.generation, token="next")
    else:
        generation.target.own(decided.unit.generation + 1)
    assert generation.seqnos() == [decided.unit.last_seqno] * 3
    assert set(rows(target_dsn)) == set(range(decided.unit.last_seqno + 1))
    assert prepared(target_dsn) == []
    assert kept(target_dsn) == 0


@gated
def test_no_snapshot_lies_inside_a_series(
    generation: Generation, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = decide(generation, monkeypatch)
    query = "SELECT parallel_apply.consistent_snapshot('p')"
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("COMMIT PREPARED {}").format(sql.Literal(staged.tables[0].staging)))
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(psycopg.errors.SerializationFailure):
            connection.execute(query)
        connection.execute("ROLLBACK")
        assert generation.seqnos() == [-1] * 3
        generation.target.take(None, generation=staged.unit.generation, token="next")
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            assert connection.execute(query).fetchone() == (staged.unit.last_seqno,)


def test_a_branch_that_somebody_rolled_back_once_it_was_decided_stops_every_run_and_can_be_dropped(
    generation: Generation, target_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = decide(generation, monkeypatch)
    roll_back(target_dsn, staged.tables[0].staging)
    with pytest.raises(TargetError, match="rolled back by hand"):
        generation.target.take(None, generation=staged.unit.generation, token="next")
    with pytest.raises(TargetError, match="rolled back by hand"):
        generation.target.own(staged.unit.generation + 1)
    assert generation.seqnos() == [-1] * 3
    generation.target.drop(force=True)
    assert prepared(target_dsn) == []


@gated
def test_a_branch_that_somebody_committed_before_it_was_decided_stops_every_run_and_can_be_dropped(
    generation: Generation, target_dsn: str
) -> None:
    """Else its rows would be applied again, which nothing notices where there is no key."""
    staged = prepare(generation)
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("COMMIT PREPARED {}").format(sql.Literal(staged.tables[0].staging)))
    unit = whole(staged)
    with pytest.raises(TargetError, match="committed by hand"):
        generation.target.take(None, generation=unit.generation, token=unit.token, group=unit.epoch)
    with pytest.raises(TargetError, match="committed by hand"):
        generation.target.commit(unit, [Merge(staged)])
    with pytest.raises(TargetError, match="committed by hand"):
        generation.target.own(unit.generation + 1)
    assert generation.seqnos() == [-1] * 3
    generation.target.drop(force=True)
    assert prepared(target_dsn) == []


def test_a_pipeline_that_is_dropped_leaves_nothing_prepared(generation: Generation, target_dsn: str) -> None:
    prepare(generation)
    generation.target.drop(force=True)
    assert prepared(target_dsn) == []
    assert rows(target_dsn) == {}


def test_status_warns_of_what_hangs_and_recover_ends_it(generation: Generation, target_dsn: str) -> None:
    staged = prepare(generation)
    status = read_status(generation.endpoint, "p")
    assert (status.epoch_protocol, status.warnings) == ("two_phase", ())
    with pytest.raises(LeaseBusy):
        recover_pipeline(generation.endpoint, "p")
    generation.ledger.release(generation.names.generation, clean_stop_seqno=None)
    (warning,) = read_status(generation.endpoint, "p").warnings
    assert warning.what.startswith(f"{len(staged.tables)} prepared branches")
    found = recover_pipeline(generation.endpoint, "p")
    assert (found.finished, found.rolled_back) == (None, len(staged.tables))
    assert prepared(target_dsn) == []
    assert read_status(generation.endpoint, "p").warnings == ()


def test_a_server_that_allows_too_few_is_told_of(generation: Generation) -> None:
    assert generation.target.branch_findings(3) == ()
    (finding,) = generation.target.branch_findings(1000)
    assert finding.fix == ("ALTER SYSTEM SET max_prepared_transactions = 1001",)


@gated
@pytest.mark.parametrize(
    ("channels", "asked", "found"),
    [
        (3, EpochProtocol.AUTO, EpochProtocol.TWO_PHASE),
        (64, EpochProtocol.AUTO, EpochProtocol.LEADER_MERGE),
        (64, EpochProtocol.TWO_PHASE, EpochProtocol.TWO_PHASE),
        (3, EpochProtocol.LEADER_MERGE, EpochProtocol.LEADER_MERGE),
    ],
)
def test_auto_prepares_where_the_server_allows_enough_and_is_no_error_elsewhere(
    generation: Generation, channels: int, asked: EpochProtocol, found: EpochProtocol
) -> None:
    config = PipelineConfig(
        pipeline="p", log_url="log", channels=channels, consistency=Consistency.EPOCH, epoch_protocol=asked
    )
    assert protocol_of(config, generation.target) is found
    refusals = [one for one in branch_findings(generation.target, config) if one.severity is Severity.ERROR]
    assert bool(refusals) == (asked is EpochProtocol.TWO_PHASE and channels == 64)
