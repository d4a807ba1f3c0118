"""Promises of every ledger together with its target, wherever each of them is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    ConflictReason,
    LeaseBusy,
    OwnershipLost,
    PlanError,
    RetryableError,
)
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, RoutingChange
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.model.epoch import Branch, Epoch, EpochKind, Reason, Unit
from airflow_parallel_apply.pipeline.model.position import Position, low_watermark
from airflow_parallel_apply.pipeline.model.rework import Rework, ReworkKind
from airflow_parallel_apply.pipeline.partition.routing import Routing
from tests.contract.ledgers import LEDGERS
from tests.support.variants import gated

LEASE = timedelta(seconds=30)
CLAIM = "claim1"
RUN1 = LeaseRequest(log_id="log1", owner="run1", lease=LEASE)
RUN2 = replace(RUN1, owner="run2")


class Side:
    """One pipeline, and short ways through it."""

    def __init__(self, open_session: Callable[[], PipelineSession]) -> None:
        self._open = open_session
        self.opened: list[PipelineSession] = []
        self.session = self.another()
        self.ledger, self.target = self.session.ledger, self.session.target
        self.session.migrate()
        self.generation = 0
        self.channels = 0

    def another(self) -> PipelineSession:
        self.opened.append(self._open())
        return self.opened[-1]

    def start(self, *, channels: int = 1, owner: str = "run1") -> None:
        self.generation = self.session.acquire(replace(RUN1, owner=owner)).generation
        self.route(channels=channels)
        self.channels = channels

    def route(self, *, channels: int) -> None:
        self.session.route(RoutingChange(generation=self.generation, log_id="log1", routing=Routing(channels=channels)))

    def commit(self, last_seqno: int, *, channel: int = 0) -> None:
        """Move a channel from where it is; no rows."""
        self.session.commit(self.unit(last_seqno, after=self.seqnos()[channel], channel=channel), [])

    def unit(self, last: int, *, after: int, channel: int, token: str = CLAIM, number: int | None = None) -> Unit:
        return Unit(
            pipeline="demo",
            generation=self.generation,
            kind=Branch(channel),
            channels=self.channels,
            token=token,
            after_seqno=after,
            last_seqno=last,
            row_count=0,
            epoch=number,
        )

    def move(self, last_seqno: int, *channels: int) -> None:
        """Take the channels and commit up to a seqno."""
        for channel in channels:
            self.target.take(channel, generation=self.generation, token=CLAIM)
            self.commit(last_seqno, channel=channel)

    def seqnos(self) -> list[int]:
        return [position.seqno for position in self.target.positions()]


@pytest.fixture(params=sorted(LEDGERS))
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    made = Side(LEDGERS[request.param](request))
    yield made
    for session in made.opened:
        session.close()


def add(
    side: Side,
    epochs: Sequence[Epoch],
    *,
    after_seqno: int = -1,
    channels: int = 2,
    generation: int | None = 1,
) -> bool:
    return side.ledger.add_epochs(
        epochs,
        routing_digest=Routing(channels=channels).digest,
        after_seqno=after_seqno,
        low_seqno=low_watermark(side.target.positions()),
        generation=generation,
    )


def epoch(number: int, first: int, last: int) -> Epoch:
    return Epoch(
        number=number,
        first_seqno=first,
        last_seqno=last,
        kind=EpochKind.PARALLEL,
        reason=Reason.CHANGES,
        rows=(3, 4),
        bytes_=(30, 40),
        end_offset=10 * last,
        inserts=(1, 4),
        end_time=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_the_lease_keeps_another_owner_out_while_its_lease_lasts(side: Side) -> None:
    first = side.session.acquire(RUN1)
    with pytest.raises(LeaseBusy, match="run1"):
        side.another().acquire(RUN2)
    again = side.another().acquire(RUN1)
    assert again.generation == first.generation + 1
    with pytest.raises(OwnershipLost):
        side.ledger.renew_lease(first.generation, LEASE)
    side.ledger.renew_lease(again.generation, LEASE)


def test_a_lease_that_is_over_is_taken_over(side: Side) -> None:
    first = side.session.acquire(replace(RUN1, lease=timedelta(0)))
    assert (first.owner, first.is_owned) == ("run1", False)
    second = side.another().acquire(RUN2)
    assert (second.owner, second.is_owned, second.generation) == ("run2", True, first.generation + 1)


@gated
def test_how_long_a_lease_is_over_is_told_by_the_ledger_s_clock(side: Side) -> None:
    owned = side.session.acquire(RUN1)
    assert owned.lapsed_for is None
    side.ledger.renew_lease(owned.generation, -timedelta(hours=1))
    lapsed = side.ledger.state()
    assert lapsed is not None
    assert lapsed.lapsed_for is not None
    assert timedelta(minutes=59) < lapsed.lapsed_for < timedelta(minutes=61)
    side.ledger.release(owned.generation, clean_stop_seqno=None)
    released = side.ledger.state()
    assert released is not None
    assert released.lapsed_for is None


@gated
def test_release_keeps_the_clean_stop_and_acquire_forgets_it(side: Side) -> None:
    found = side.session.acquire(RUN1)
    side.ledger.release(found.generation, clean_stop_seqno=17)
    state = side.ledger.state()
    assert state is not None
    assert (state.owner, state.is_owned, state.clean_stop_seqno) == (None, False, 17)
    assert side.another().acquire(RUN2).clean_stop_seqno is None
    with pytest.raises(OwnershipLost):
        side.ledger.release(found.generation, clean_stop_seqno=18)


@gated
def test_another_log_is_refused(side: Side) -> None:
    side.start()
    with pytest.raises(ConfigurationError, match="log1"):
        side.session.acquire(replace(RUN1, log_id="log2"))


@gated
def test_the_positions_know_the_log_whose_changes_they_are_of(side: Side) -> None:
    assert side.target.log_id() == ""
    side.start()
    assert side.target.log_id() == "log1"


@gated
def test_routing_changes_only_while_all_positions_are_equal(side: Side) -> None:
    side.start(channels=2)
    side.route(channels=2)
    side.route(channels=3)
    assert side.seqnos() == [-1, -1, -1]
    side.target.take(1, generation=side.generation, token=CLAIM)
    side.commit(4, channel=1)
    with pytest.raises(PlanError, match="while the channels stand at"):
        side.route(channels=2)
    for channel in (0, 2):
        side.target.take(channel, generation=side.generation, token=CLAIM)
        side.commit(4, channel=channel)
    side.route(channels=2)
    assert side.seqnos() == [4, 4]


@gated
def test_run_bounds_are_frozen_by_the_first_call(side: Side) -> None:
    side.start()
    side.ledger.freeze_run("r", 100)
    bounds = side.ledger.freeze_run("r", 200)
    assert (bounds.until_offset, bounds.until_seqno) == (100, None)
    side.ledger.settle_run("r", 7)
    assert side.ledger.settle_run("r", 9).until_seqno == 7
    side.ledger.freeze_run("s", 300)
    side.ledger.settle_run("s", 12)
    assert side.ledger.run_cuts(-1) == (7, 12)
    assert side.ledger.run_cuts(7) == (12,)
    with pytest.raises(ConfigurationError, match="never opened"):
        side.ledger.settle_run("unknown", 1)


@gated
def test_a_cut_forgets_the_plan_from_the_epoch_that_goes_on_beyond_it(side: Side) -> None:
    side.start(channels=2)
    epochs = (epoch(0, 0, 4), epoch(1, 5, 9), epoch(2, 10, 14))
    add(side, epochs, generation=side.generation)

    def cut(seqno: int, *seqnos: int) -> tuple[Epoch, ...]:
        at = [Position(channel=number, seqno=one, generation=0, claim=None) for number, one in enumerate(seqnos)]
        side.ledger.cut_plan(seqno, at, generation=side.generation)
        return side.ledger.epochs()

    for seqno in (4, 9, 14, 20):
        assert cut(seqno, -1, -1) == epochs
    assert cut(7, 9, -1) == epochs, "a channel is through with it"
    assert cut(12, 9, -1) == epochs[:2]
    assert (side.session.planned_seqno(), side.ledger.next_epoch_number()) == (9, 2)
    assert cut(7, 6, 6) == epochs[:1], "all channels stand at one seqno inside it"
    with pytest.raises(OwnershipLost):
        side.ledger.cut_plan(2, (), generation=side.generation + 1)


@gated
def test_the_plan_grows_only_at_its_end_and_under_its_digest(side: Side) -> None:
    side.start(channels=2)
    assert (side.session.planned_seqno(), side.ledger.next_epoch_number()) == (-1, 0)
    epochs = (epoch(0, 0, 4), epoch(1, 5, 9))
    assert not add(side, epochs, channels=3)
    assert add(side, epochs)
    assert not add(side, epochs)
    assert (side.session.planned_seqno(), side.ledger.next_epoch_number()) == (9, 2)
    assert add(side, (epoch(2, 10, 10),), after_seqno=9)
    assert side.ledger.epochs()[:2] == epochs
    assert [found.number for found in side.ledger.epochs(after_number=0, limit=1)] == [1]
    assert [found.number for found in side.ledger.epochs(above_seqno=9)] == [2]
    assert [side.ledger.last_epoch_at(seqno) for seqno in (3, 4, 100)] == [-1, 0, 2]


@gated
def test_while_a_pipeline_has_an_owner_nobody_else_plans(side: Side) -> None:
    side.start(channels=2)
    older, epochs = side.generation, (epoch(0, 0, 4),)
    side.start(channels=2)
    with pytest.raises(LeaseBusy, match="owns the pipeline"):
        add(side, epochs, generation=None)
    with pytest.raises(OwnershipLost, match=f"generation {older} "):
        add(side, epochs, generation=older)
    side.ledger.release(side.generation, clean_stop_seqno=None)
    assert add(side, epochs, generation=None)


@gated
def test_a_change_of_routing_drops_the_plan_above_the_positions(side: Side) -> None:
    side.start(channels=1)
    add(side, (epoch(0, 0, 4), epoch(1, 5, 9)), channels=1)
    side.target.take(0, generation=side.generation, token=CLAIM)
    side.commit(4)
    side.route(channels=2)
    assert [found.number for found in side.ledger.epochs()] == [0]
    assert side.session.planned_seqno() == 4


@gated
def test_nobody_of_a_former_generation_takes_or_commits(side: Side) -> None:
    side.start(channels=2)
    former, generation = side.another(), side.generation
    former.target.take(0, generation=generation, token="former")
    side.another().acquire(RUN1)
    with pytest.raises((OwnershipLost, RetryableError)):
        former.commit(side.unit(4, after=-1, channel=0, token="former"), [])
    with pytest.raises((OwnershipLost, RetryableError)):
        former.target.take(1, generation=generation, token="former")
    assert side.seqnos() == [-1, -1]


@gated
def test_a_unit_moves_its_position_once_and_only_from_where_it_is(side: Side) -> None:
    side.start(channels=2)
    side.target.take(1, generation=side.generation, token=CLAIM)
    for _ in range(2):
        side.session.commit(side.unit(4, after=-1, channel=1), [])
        assert side.seqnos() == [-1, 4]
    for after, token in ((2, CLAIM), (4, "another")):
        with pytest.raises(OwnershipLost):
            side.session.commit(side.unit(9, after=after, channel=1, token=token), [])
    assert side.seqnos() == [-1, 4]


@gated
def test_a_unit_rests_only_where_the_plan_says(side: Side) -> None:
    side.start(channels=2)
    add(side, (epoch(0, 0, 4),), generation=side.generation)
    side.target.take(0, generation=side.generation, token=CLAIM)
    unit = side.unit(3, after=-1, channel=0, number=0)
    with pytest.raises(OwnershipLost, match="no planned epoch"):
        side.session.commit(unit, [])
    side.session.commit(replace(unit, last_seqno=4), [])
    assert side.seqnos() == [4, -1]


@gated
def test_planned_rows_are_told_by_channel(side: Side) -> None:
    side.start(channels=2)
    add(side, (epoch(0, 0, 4), epoch(1, 5, 9)), generation=side.generation)
    side.move(4, 1)
    assert side.ledger.channel_rows(side.target.positions()) == ((0, 6), (4, 4))
    side.move(4, 0)
    side.move(9, 0, 1)
    assert side.ledger.purge_plan(9) == 1
    assert [found.number for found in side.ledger.epochs()] == [1]


def test_a_generation_is_above_all_that_is_known_of_it(side: Side) -> None:
    assert side.session.acquire(replace(RUN1, above=7)).generation == 8


@gated
def test_what_was_removed_is_not_registered_again_by_who_knew_it(side: Side) -> None:
    """It would begin at the log's beginning, in tables that have rows."""
    for go_on in (
        lambda: side.session.acquire(replace(RUN1, is_known=True)),
        lambda: side.session.route(
            RoutingChange(generation=None, log_id="log1", routing=Routing(channels=1), is_known=True)
        ),
        lambda: side.ledger.freeze_run("r", 100),
    ):
        with pytest.raises(OwnershipLost, match="the pipeline was removed"):
            go_on()
    assert side.ledger.state() is None


@gated
def test_a_merge_point_is_counted_once_however_often_its_claimants_say_so(side: Side) -> None:
    side.start()
    for seqno in (4, 4, 9):
        side.ledger.count_rework(
            Rework(kind=ReworkKind.MERGE_POINT, reason=ConflictReason.UNIQUE, table="public.accounts"), seqno=seqno
        )
    (found,) = side.ledger.rework()
    assert (found.table, found.count, found.last_seqno) == ("public.accounts", 2, 9)
