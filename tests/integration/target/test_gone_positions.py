"""Positions that somebody removes: no run guesses them, and where something tells them the hint leads on."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.errors import TargetError
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

MODES = {
    "channel": {},
    "leader_merge": {"consistency": Consistency.EPOCH, "epoch_protocol": EpochProtocol.LEADER_MERGE},
    "two_phase": {"consistency": Consistency.EPOCH, "epoch_protocol": EpochProtocol.TWO_PHASE},
}
REMOVED = {
    "one": "DELETE FROM parallel_apply.position WHERE channel = 1",
    "all": "DELETE FROM parallel_apply.position",
}


@pytest.fixture
def begun(rig: Rig) -> Rig:
    """Behind a run; more is to come."""
    rig.both("CREATE TABLE t (v int)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT generate_series(1, 9)")
    rig.run()
    rig.write("INSERT INTO t SELECT generate_series(1, 9)")
    return rig


@pytest.mark.parametrize("channels", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("removed", variants(REMOVED, seldom=["all"]))
def test_positions_behind_a_clean_stop_are_put_back_by_the_hint(begun: Rig, removed: str, channels: int) -> None:
    execute(begun.target_dsn, REMOVED[removed])
    next_ = begun.having(channels=channels)
    with pytest.raises(TargetError, match="had stopped at seqno 0") as caught:
        next_.run()
    found = re.search(r"run (INSERT .*?) at the target", str(caught.value))
    assert found is not None, caught.value
    execute(begun.target_dsn, found[1])
    next_.run()
    assert begun.comparison().equal


@gated
@pytest.mark.parametrize("mode", variants(MODES, seldom=["channel", "leader_merge"]))
def test_positions_that_go_under_the_lanes_end_the_run(begun: Rig, mode: str) -> None:
    rig = begun.having(**MODES[mode])
    rig.capture("r")
    opened = rig.open("r")
    execute(rig.target_dsn, REMOVED["one"])
    with pytest.raises(TargetError, match="position of channels 1 are gone"):
        rig.apply(opened)
    with pytest.raises(TargetError, match="position of channels 1 are gone"):
        rig.close(opened)
    assert rig.rows("SELECT owner FROM parallel_apply.pipeline") == [(None,)]
    assert rig.rows("SELECT FROM pg_prepared_xacts WHERE database = current_database()") == []
    with pytest.raises(TargetError, match="position of channels 1 are gone"):
        rig.run()
