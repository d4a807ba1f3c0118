"""Groups of epochs by property: what is fed, whatever the epochs and limits, is all of them, once, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.coordinate.grouping import MAX_GROUPS_AHEAD, GroupLimits, with_groups
from airflow_parallel_apply.pipeline.coordinate.groups import misfit_of_groups
from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState, Phase
from airflow_parallel_apply.pipeline.coordinate.tasks import PARKED, ChannelWork, Kind, Names, OrderedWork
from airflow_parallel_apply.pipeline.model.epoch import Epoch, EpochKind, Reason
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.queue.memory.backend import MemoryQueue
from airflow_parallel_apply.queue.memory.engine import Engine
from airflow_parallel_apply.queue.model import Insert

CHANNELS = 3
NAMES = Names(pipeline="p", generation=1)


@st.composite
def planned(draw: st.DrawFn) -> list[Epoch]:
    """Epochs without gaps, from seqno 0."""
    epochs: list[Epoch] = []
    first = 0
    for number in range(draw(st.integers(1, 12))):
        last = first + draw(st.integers(0, 3))
        rows = tuple(draw(st.lists(st.integers(0, 4), min_size=CHANNELS, max_size=CHANNELS)))
        kind = draw(st.sampled_from([EpochKind.PARALLEL, EpochKind.PARALLEL, EpochKind.SERIAL]))
        epochs.append(
            Epoch(
                number=number,
                first_seqno=first,
                last_seqno=last,
                kind=kind,
                reason=Reason.CHANGES,
                rows=rows,
                bytes_=tuple(10 * count for count in rows),
                inserts=rows if draw(st.booleans()) else tuple(0 for _ in rows),
            )
        )
        first = last + 1
    return epochs


limits = st.builds(GroupLimits, bytes_=st.sampled_from([1, 50, 10_000]), rows_at_once=st.sampled_from([0, 5, 100]))


def begun(protocol: EpochProtocol = EpochProtocol.LEADER_MERGE) -> CoordinatorState:
    return CoordinatorState(
        protocol=protocol,
        phase=Phase.RUNNING,
        channels=CHANNELS,
        fed_epoch=-1,
        fed_seqno=-1,
        until_seqno=None,
        consistency=Consistency.EPOCH,
    )


def positions(*seqnos: int) -> list[Position]:
    return [Position(channel=channel, seqno=seqno, generation=1, claim=None) for channel, seqno in enumerate(seqnos)]


def fed(inserts: list[Insert]) -> MemoryQueue:
    queue = MemoryQueue(Engine())
    queue.modify(claimant="test", insert=inserts)
    return queue


def ordered(inserts: list[Insert]) -> list[OrderedWork]:
    return [OrderedWork.of_task(task) for task in fed(inserts).tasks(NAMES.serial)]


def stages(inserts: list[Insert]) -> list[ChannelWork]:
    queue = fed(inserts)
    return [ChannelWork.of_task(task) for channel in range(CHANNELS) for task in queue.tasks(NAMES.channel(channel))]


protocols = st.sampled_from(EpochProtocol)


@given(epochs=planned(), limits=limits, protocol=protocols)
def test_everything_is_fed_once_and_in_order_while_commits_keep_up(
    epochs: list[Epoch], limits: GroupLimits, protocol: EpochProtocol
) -> None:
    state, low, reached, rows = begun(protocol), -1, -1, 0
    while state.fed_epoch < epochs[-1].number:
        left = [epoch for epoch in epochs if epoch.number > state.fed_epoch]
        before = state
        state, inserts = with_groups(state, NAMES, left, positions(*[low] * CHANNELS), limits)
        assert state.fed_epoch > before.fed_epoch
        prepared = {stage.epoch for stage in stages(inserts) if stage.kind.prepares}
        assert len(state.groups_ahead) <= (1 if prepared else MAX_GROUPS_AHEAD)
        require_right_protocol(protocol, ordered(inserts), prepared)
        for one in ordered(inserts):
            assert one.work.first_seqno == reached + 1
            reached = one.work.last_seqno
            parts = [stage for stage in stages(inserts) if stage.epoch == one.work.epoch]
            assert sorted(stage.channel for stage in parts) == sorted(one.awaited)
            if one.kind is Kind.COMMIT:
                assert sum(stage.rows for stage in parts) == one.work.rows
                rows += one.work.rows
            else:
                assert [stage.kind for stage in parts] == [Kind.BARRIER] * CHANNELS
        low = state.fed_seqno
    assert reached == epochs[-1].last_seqno
    assert rows == sum(epoch.row_count for epoch in epochs if epoch.kind is EpochKind.PARALLEL)


def require_right_protocol(protocol: EpochProtocol, found: list[OrderedWork], prepared: set[int]) -> None:
    """Every group with rows is prepared, or none is. A state may say `auto` where an earlier release wrote it."""
    for one in found:
        is_empty = one.kind is not Kind.COMMIT or not one.work.rows
        assert (one.work.epoch in prepared) == (protocol is not EpochProtocol.LEADER_MERGE and not is_empty)


def test_status_is_told_for_how_long_groups_are_staged_after_one_was_rolled_back() -> None:
    two_phase = begun(EpochProtocol.TWO_PHASE)
    assert two_phase.told_protocol == "two_phase"
    staging = two_phase.staging(16)
    assert not staging.prepares
    assert staging.told_protocol == "leader_merge for 16 more groups, two_phase after them"
    assert begun().staging(16).told_protocol == "leader_merge"


@given(epochs=planned(), limits=limits)
def test_only_what_awaits_somebody_is_parked(epochs: list[Epoch], limits: GroupLimits) -> None:
    _, inserts = with_groups(begun(), NAMES, epochs, positions(*[-1] * CHANNELS), limits)
    waiting = [insert for insert in inserts if insert.queue == NAMES.serial]
    assert [insert.at == PARKED for insert in waiting] == [not one.is_complete for one in ordered(inserts)]


@given(epochs=planned(), ahead=st.lists(st.integers(0, 11), min_size=CHANNELS, max_size=CHANNELS), limits=limits)
def test_channels_that_are_apart_meet_in_the_first_group_which_nobody_stages_for(
    epochs: list[Epoch], ahead: list[int], limits: GroupLimits
) -> None:
    parallel = 0
    while parallel < len(epochs) and epochs[parallel].kind is EpochKind.PARALLEL:
        parallel += 1
    ends = [-1, *(epoch.last_seqno for epoch in epochs[:parallel])]
    at = [ends[0], *(ends[choice % len(ends)] for choice in ahead[1:])]
    state, inserts = with_groups(begun(), NAMES, epochs, positions(*at), limits)
    first = ordered(inserts)[0]
    if len(set(at)) > 1:
        assert (first.work.first_seqno, first.work.last_seqno, first.awaited) == (0, max(at), ())
    assert state.fed_seqno >= max(at)


@given(epochs=planned(), limits=limits, data=st.data())
def test_tasks_fit_until_one_that_is_awaited_is_missing(
    epochs: list[Epoch], limits: GroupLimits, data: st.DataObject
) -> None:
    at = positions(*[-1] * CHANNELS)
    state, inserts = with_groups(begun(), NAMES, epochs, at, limits)
    queue = fed(inserts)
    plan = {epoch.number: epoch for epoch in epochs}

    def misfit() -> str | None:
        channels = {channel: queue.tasks(NAMES.channel(channel)) for channel in range(CHANNELS)}
        return misfit_of_groups(state, queue.tasks(NAMES.serial), channels, at, plan)

    assert misfit() is None
    everything = [
        task
        for name in (NAMES.serial, *(NAMES.channel(channel) for channel in range(CHANNELS)))
        for task in queue.tasks(name)
    ]
    lost = data.draw(st.sampled_from(everything))
    queue.modify(claimant="test", delete=[lost.ref])
    assert misfit() is not None
