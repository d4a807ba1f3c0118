"""Protocol `two_phase`: lanes prepare the parts of a group side by side, and one lane commits all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql

from airflow_parallel_apply.pipeline.coordinate.feeding import FeedLimits
from airflow_parallel_apply.pipeline.coordinate.grouping import GroupLimits
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.postgres import replica_role, target
from airflow_parallel_apply.pipeline.target.postgres.load import table_load
from airflow_parallel_apply.pipeline.target.postgres.merge import merge
from airflow_parallel_apply.pipeline.target.postgres.positions.branches import record
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from tests.contract.branches import Make, kept, left_over, make_branches
from tests.contract.test_coordinate import history
from tests.contract.test_groups import SOME_LANES, bring_to_the_end, rows
from tests.support.in_memory.history import bucket_of
from tests.support.local_stage import LocalStage
from tests.support.variants import gated
from tests.support.written_log import Change, append

pytestmark = pytest.mark.parametrize("steered_by", ["in the target"], indirect=True)


@pytest.fixture(autouse=True)
def nothing_is_left(target_dsn: str) -> Iterator[None]:
    yield
    assert left_over(target_dsn) == []


@pytest.fixture
def series(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many branches each group had that was committed."""
    counts: list[int] = []

    def counted(connection: Connection, session: Session, unit: Unit, names: Sequence[str]) -> None:
        record(connection, session, unit, names)
        counts.append(len(names))

    monkeypatch.setattr(target, "record", counted)
    return counts


@SOME_LANES
def test_lanes_bring_all_channels_to_the_end_together(
    make: Make, target_dsn: str, log_url: str, series: list[int], channels: int, lanes: int, limits: FeedLimits
) -> None:
    bring_to_the_end(partial(make_branches, make, channels, limits), target_dsn, log_url, lanes)
    assert max(series) > 2
    assert kept(target_dsn) == 0


@gated
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


@gated
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


@gated
@pytest.mark.parametrize("why", ["a role that is no replica", "a trigger that acts on a replica's rows"])
def test_what_cannot_be_prepared_is_merged_by_the_commit(
    make: Make, target_dsn: str, log_url: str, series: list[int], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    transactions, expected = history(60, seed=5)
    last = append(log_url, 0, transactions)
    if why == "a role that is no replica":
        monkeypatch.setattr(replica_role, "may_be_replica", lambda connection: False)
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


@gated
def test_insertions_go_straight_into_the_table(
    make: Make, target_dsn: str, log_url: str, series: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_load, "create_staging", None)
    last = append(log_url, 0, [[Change("I", key, f"a\\b\t{key}")] for key in range(100)])
    generation = make_branches(make)
    generation.lane()
    assert rows(target_dsn) == {key: f"a\\b\t{key}" for key in range(100)}
    assert generation.seqnos() == [last] * 3
    assert series == [3]


@gated
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


@gated
@pytest.mark.parametrize("other_index", ["", "(v || id)", "(id * 2)"])
def test_insertions_that_come_with_other_changes_are_staged_only_where_those_may_free_what_they_need(
    make: Make,
    target_dsn: str,
    log_url: str,
    series: list[int],
    monkeypatch: pytest.MonkeyPatch,
    other_index: str,
) -> None:
    if other_index:
        with psycopg.connect(target_dsn) as connection:
            connection.execute(sql.SQL("CREATE UNIQUE INDEX ON t ({})").format(sql.SQL(other_index)))
    merged: list[str] = []
    run = merge._run

    def told(*arguments: Any, **options: Any) -> None:
        if arguments[3]:
            merged.append(arguments[2])
        run(*arguments, **options)

    monkeypatch.setattr(merge, "_run", told)
    monkeypatch.setattr(LocalStage, "ROWS_AT_ONCE", 5)
    append(log_url, 0, [[Change("I", 1, "old"), Change("I", 2, "gone")]])
    make_branches(make).lane()
    del series[:], merged[:]
    append(log_url, 1, [[*(Change("I", key, "new") for key in range(100, 200)), Change("U", 1, "new"), Change("D", 2)]])
    report = make_branches(make).lane()
    assert rows(target_dsn) == {1: "new", **dict.fromkeys(range(100, 200), "new")}
    assert report.restaged_groups == 0
    assert series == [3]
    assert ("I" in merged) == bool(other_index)
    assert {"U", "D"} <= set(merged)
