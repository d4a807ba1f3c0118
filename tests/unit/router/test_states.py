"""Every pair of states: what the tables allow is done, everything else is refused."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.router.engine.states import DEMANDS, PHASES, Demand, Phase, moved


@pytest.mark.parametrize("to", Demand)
@pytest.mark.parametrize("state", Demand)
def test_demand_moves_one_way(state: Demand, to: Demand) -> None:
    order = list(Demand)
    if order.index(to) > order.index(state):
        assert moved(state, to, DEMANDS) is to
    else:
        with pytest.raises(ValueError, match="does not lead to"):
            moved(state, to, DEMANDS)


ALLOWED = {
    (Phase.NEW, Phase.RUNNING),
    (Phase.NEW, Phase.CANCELLED),
    (Phase.RUNNING, Phase.STOPPED),
    (Phase.STOPPED, Phase.RUNNING),
    *((state, to) for state in (Phase.RUNNING, Phase.STOPPED) for to in (Phase.DRAINED, Phase.FAILED, Phase.CANCELLED)),
    (Phase.RUNNING, Phase.ENDED),
    (Phase.ENDED, Phase.CANCELLED),
}


@pytest.mark.parametrize("to", Phase)
@pytest.mark.parametrize("state", Phase)
def test_phases_move_as_the_diagram_says(state: Phase, to: Phase) -> None:
    if (state, to) in ALLOWED:
        assert moved(state, to, PHASES) is to
    else:
        with pytest.raises(ValueError, match="does not lead to"):
            moved(state, to, PHASES)


def test_rows_may_come_until_an_engine_is_over() -> None:
    assert [phase for phase in Phase if phase.is_live] == [Phase.NEW, Phase.RUNNING, Phase.STOPPED]
