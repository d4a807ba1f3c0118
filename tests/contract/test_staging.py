"""The owner of staging: a claim's goes with the claim, a group's stays until its commit or another generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from airflow_parallel_apply.pipeline.errors import OwnershipLost, StagingLost
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, RoutingChange
from airflow_parallel_apply.pipeline.model.epoch import Branch, GroupPart, Merging, StagedUnit, Unit, UnitKind
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.contract.targets import TARGETS, Admitted
from tests.support.variants import gated

LAST = 4
CHANNELS = 2
GROUP = 7
ALL = Merging((-1,) * CHANNELS)


class Side:
    """One pipeline of two channels, and what its lanes do."""

    def __init__(self, admitted: Admitted) -> None:
        self.admitted = admitted
        self.opened = [admitted.open()]
        self.session = self.opened[0]
        self.session.migrate()
        self.acquire()
        self.session.route(RoutingChange(generation=self.generation, log_id="log", routing=Routing(channels=CHANNELS)))

    def acquire(self) -> None:
        """A run opens, and owns the positions from now on."""
        owned = self.session.acquire(LeaseRequest(log_id="log", owner="run", lease=timedelta(seconds=30)))
        self.generation = owned.generation

    def take(self, channel: int | None, token: str, *, group: int | None = None) -> None:
        self.opened.append(self.admitted.open())
        self.opened[-1].target.take(channel, generation=self.generation, token=token, group=group)

    def unit(self, kind: UnitKind, token: str) -> Unit:
        return Unit(
            pipeline="demo",
            generation=self.generation,
            kind=kind,
            channels=CHANNELS,
            token=token,
            after_seqno=-1,
            last_seqno=LAST,
            row_count=0,
        )

    def stage(self, kind: UnitKind, token: str, *keys: int) -> StagedUnit:
        return self.admitted.stage(self.session, self.unit(kind, token), keys)

    def commit(self, staged: Sequence[StagedUnit], kind: UnitKind = ALL) -> set[int]:
        """By a new claim, whatever it was staged under; the keys that are there then. It keeps the staging of GROUP."""
        channel = kind.channel if isinstance(kind, Branch) else None
        self.take(channel, "committer", group=None if channel is not None else GROUP)
        self.opened[-1].commit(self.unit(kind, "committer"), [Merge(one) for one in staged])
        return self.admitted.keys()


@pytest.fixture(params=sorted(TARGETS))
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    made = Side(TARGETS[request.param](request))
    yield made
    for session in made.opened:
        session.close()


@pytest.mark.parametrize("taken", [0, None])
def test_what_a_claim_staged_goes_with_the_claim(side: Side, taken: int | None) -> None:
    side.take(0, "former")
    staged = side.stage(Branch(0), "former", 1)
    side.take(taken, "another")
    with pytest.raises(StagingLost):
        side.commit([staged], Branch(0))
    assert side.admitted.keys() == set()


@gated
def test_what_a_claim_staged_stays_while_others_take_other_channels(side: Side) -> None:
    side.take(0, "committer")
    staged = side.stage(Branch(0), "committer", 1)
    side.take(1, "another")
    assert side.commit([staged], Branch(0)) == {1}


@gated
def test_what_is_staged_for_a_group_outlives_the_claims_of_its_channels(side: Side) -> None:
    staged = [side.stage(GroupPart(GROUP, channel), f"stager {channel}", channel) for channel in range(CHANNELS)]
    for channel in range(CHANNELS):
        side.take(channel, f"holder of {channel}")
    assert side.commit(staged) == {0, 1}


@gated
def test_the_committer_of_a_group_leaves_the_groups_behind_it_and_drops_those_before(side: Side) -> None:
    before = side.stage(GroupPart(GROUP - 1, 0), "a", 1)
    behind = side.stage(GroupPart(GROUP + 3, 0), "b", 2)
    side.take(None, "of an earlier one", group=GROUP - 1)
    side.take(None, "committer", group=GROUP)
    with pytest.raises(StagingLost):
        side.commit([before])
    assert side.commit([behind]) == {2}


@gated
def test_a_serial_unit_and_another_generation_drop_what_groups_staged(side: Side) -> None:
    for ending in (lambda: side.take(None, "serial"), side.acquire):
        staged = side.stage(GroupPart(GROUP, 0), "stager", 1)
        ending()
        with pytest.raises(StagingLost):
            side.commit([staged])


@gated
def test_a_stager_of_a_group_drops_what_its_predecessor_staged_for_the_same_channel(side: Side) -> None:
    former = side.stage(GroupPart(GROUP, 0), "former", 1)
    beside = side.stage(GroupPart(GROUP, 1), "beside", 2)
    behind = side.stage(GroupPart(GROUP + 1, 0), "behind", 3)
    side.session.target.take_part(side.unit(GroupPart(GROUP, 0), "another"))
    mine = side.stage(GroupPart(GROUP, 0), "another", 4)
    with pytest.raises(StagingLost):
        side.commit([former])
    assert side.commit([mine, beside, behind]) == {2, 3, 4}


@gated
def test_nobody_stages_for_a_generation_that_is_over(side: Side) -> None:
    unit = side.unit(GroupPart(GROUP, 0), "stager")
    side.acquire()
    with pytest.raises(OwnershipLost):
        side.session.target.take_part(unit)
