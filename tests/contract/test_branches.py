"""Protocol `two_phase`: the parts of a group are prepared side by side, and one lane commits all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from airflow_parallel_apply.pipeline.admin.recover import recover_pipeline
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.grouping import GroupLimits
from airflow_parallel_apply.pipeline.coordinate.state import Phase
from airflow_parallel_apply.pipeline.coordinate.tasks import OrderedWork
from airflow_parallel_apply.pipeline.errors import LeaseBusy, OwnershipLost, StagingLost, TargetError
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, Serial, StagedUnit, Unit
from airflow_parallel_apply.pipeline.target.postgres import loader, merge, target
from airflow_parallel_apply.pipeline.target.postgres.branches import record
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.contract.test_coordinate import history
from tests.contract.test_groups import APART, rows, staging
from tests.support.generation import Generation
from tests.support.in_memory.history import bucket_of
from tests.support.local_stage import LocalStage
from tests.support.written_log import Change, append

CLAIM = "a claim"

Make = Callable[..., Generation]

pytestmark = pytest.mark.parametrize("steered_by", ["in the target"], indirect=True)


def make_branches(make: Make, channels: int = 3, limits: FeedLimits = APART) -> Generation:
    return make(channels, limits, consistency=Consistency.EPOCH, protocol=EpochProtocol.TWO_PHASE)


def prepared(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid")
        return [name for (name,) in found]


def kept(dsn: str) -> int:
    """Records and marks."""
    with psycopg.connect(dsn) as connection:
        query = "SELECT (SELECT count(*) FROM parallel_apply.series) + (SELECT count(*) FROM parallel_apply.branch)"
        return int((connection.execute(query).fetchone() or (0,))[0])


@pytest.fixture(autouse=True)
def nothing_is_left(target_dsn: str) -> Iterator[None]:
    yield
    assert prepared(target_dsn) == []
    assert staging(target_dsn) == []


@pytest.fixture
def series(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many branches each group had that was committed."""
    counts: list[int] = []

    def counted(connection: Connection, session: Session, unit: Unit, names: Sequence[str]) -> None:
        record(connection, session, unit, names)
        counts.append(len(names))

    monkeypatch.setattr(target, "record", counted)
    return counts


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


# --- lanes ---


@pytest.mark.parametrize(
    ("channels", "lanes", "limits"),
    [pytest.param(8, 1, APART, marks=pytest.mark.long), (4, 3, APART), (4, 2, FeedLimits())],
)
def test_lanes_bring_all_channels_to_the_end_together(
    make: Make, target_dsn: str, log_url: str, series: list[int], channels: int, lanes: int, limits: FeedLimits
) -> None:
    transactions, expected = history(120, seed=channels * 10 + lanes)
    last = append(log_url, 0, transactions)
    generation = make_branches(make, channels, limits)
    reports = generation.lanes(lanes)
    assert rows(target_dsn) == expected
    assert generation.seqnos() == [last] * channels
    assert generation.coordinator.state().phase is Phase.DRAINED
    assert sum(report.groups for report in reports) > 0
    assert sum(report.restaged_groups for report in reports) == 0
    assert max(series) > 2
    assert kept(target_dsn) == 0


def test_one_group_is_prepared_at_a_time(make: Make, log_url: str) -> None:
    append(log_url, 0, [[Change("I", key, str(key))] for key in range(200)])
    generation = make_branches(make, limits=FeedLimits(groups=GroupLimits(bytes_=1)))
    assert len(generation.queue.tasks(generation.names.serial)) == 1
    generation.lane()
    assert generation.seqnos() == [199] * 3


@pytest.mark.long
def test_unique_values_change_hands_between_channels_inside_groups(make: Make, target_dsn: str, log_url: str) -> None:
    with psycopg.connect(target_dsn) as connection:
        connection.execute("ALTER TABLE t ADD UNIQUE (v)")
    first = [[Change("I", key, f"v{key}")] for key in range(40)]
    rounds = [[Change("U", key, f"v{(key + step) % 40}") for key in range(40)] for step in range(1, 4)]
    last = append(log_url, 0, [*first, *[[*(Change("U", key, None) for key in range(40)), *group] for group in rounds]])
    generation = make_branches(make, 8, FeedLimits(groups=GroupLimits(rows_at_once=0, bytes_=1)))
    generation.lanes(4)
    assert generation.seqnos() == [last] * 8
    assert rows(target_dsn) == {key: f"v{(key + 3) % 40}" for key in range(40)}


def test_what_waits_for_a_branch_rolls_all_back_and_those_behind_it_are_staged(
    make: Make, target_dsn: str, log_url: str, series: list[int]
) -> None:
    """Channel 0 frees the value, and is prepared first; what takes it waits for that."""
    with psycopg.connect(target_dsn) as connection:
        connection.execute("ALTER TABLE t ADD UNIQUE (v)")
    giver, taker = (
        next(key for key in range(1000) if bucket_of(key) * 2 // BUCKET_COUNT == channel) for channel in range(2)
    )
    append(log_url, 0, [[Change("I", giver, "wanted"), Change("I", taker, "other")]])
    make_branches(make, 2).lane()
    append(log_url, 1, [[Change("D", giver), Change("U", taker, "wanted")]])
    generation = make_branches(make, 2)
    report = generation.lane()
    assert rows(target_dsn) == {taker: "wanted"}
    assert report.restaged_groups == 1
    assert generation.coordinator.state().staged_count > 1
    assert series == [2]
    assert {(found.kind, found.reason) for found in generation.ledger.rework()} == {
        ("restaging", "branches rolled back"),
        ("rollback", "branches rolled back"),
    }


@pytest.mark.parametrize("why", ["a role that is no replica", "a trigger that acts on a replica's rows"])
def test_what_cannot_be_prepared_is_merged_by_the_commit(
    make: Make, target_dsn: str, log_url: str, series: list[int], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    transactions, expected = history(60, seed=5)
    last = append(log_url, 0, transactions)
    if why == "a role that is no replica":
        monkeypatch.setattr(merge, "may_be_replica", lambda connection, session: False)
    else:
        with psycopg.connect(target_dsn, autocommit=True) as connection:
            connection.execute(
                "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
                "CREATE TRIGGER nothing AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION nothing();"
                "ALTER TABLE t ENABLE ALWAYS TRIGGER nothing"
            )
    generation = make_branches(make)
    generation.lanes(2)
    assert rows(target_dsn) == expected
    assert generation.seqnos() == [last] * 3
    assert series == []


def test_insertions_go_straight_into_the_table(
    make: Make, target_dsn: str, log_url: str, series: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "create_staging", None)
    last = append(log_url, 0, [[Change("I", key, f"a\\b\t{key}")] for key in range(100)])
    generation = make_branches(make)
    generation.lane()
    assert rows(target_dsn) == {key: f"a\\b\t{key}" for key in range(100)}
    assert generation.seqnos() == [last] * 3
    assert series == [3]


def test_insertions_that_are_refused_are_told_with_their_place_and_those_before_them_stay(
    make: Make, target_dsn: str, log_url: str
) -> None:
    append(log_url, 0, [[Change("I", key, str(key))] for key in range(100)])
    with psycopg.connect(target_dsn) as connection:
        connection.execute("ALTER TABLE t ADD CHECK (id <> 77)")
    generation = make_branches(make)
    generation.lane()
    failure = generation.coordinator.state().failure
    assert failure is not None
    assert failure.seqno == 60, "an epoch has 20 of these transactions"
    assert "t_id_check" in failure.message
    assert set(rows(target_dsn)) == set(range(60))


def test_a_table_that_gets_insertions_first_and_other_changes_behind_them_gets_both(
    make: Make, target_dsn: str, log_url: str, series: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStage, "ROWS_AT_ONCE", 5)
    append(log_url, 0, [[Change("I", 1, "old"), Change("I", 2, "gone")]])
    make_branches(make).lane()
    del series[:]
    append(log_url, 1, [[*(Change("I", key, "new") for key in range(100, 200)), Change("U", 1, "new"), Change("D", 2)]])
    report = make_branches(make).lane()
    assert rows(target_dsn) == {1: "new", **dict.fromkeys(range(100, 200), "new")}
    assert report.restaged_groups == 0
    assert series == [3]


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


@pytest.mark.parametrize("who", ["another lane", "another run"])
def test_whoever_comes_next_commits_what_was_decided(
    generation: Generation, target_dsn: str, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    decided = decide(generation, monkeypatch)
    if who == "another lane":
        generation.target.take(None, generation=decided.unit.generation, token="next")
    else:
        generation.target.own(decided.unit.generation + 1)
    assert generation.seqnos() == [decided.unit.last_seqno] * 3
    assert set(rows(target_dsn)) == set(range(decided.unit.last_seqno + 1))
    assert prepared(target_dsn) == []
    assert kept(target_dsn) == 0


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


def roll_back(dsn: str, name: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)))


@pytest.fixture
def generation(make: Make, log_url: str) -> Generation:
    """Its first group has all channels' rows."""
    append(log_url, 0, [[Change("I", key, str(key))] for key in range(100)])
    return make_branches(make, limits=FeedLimits())
