"""An owner whose lease is over, and whose run goes on, is waited for: by the ledger's clock, whatever ours says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_parallel_apply.pipeline.errors import LeaseBusy
from airflow_parallel_apply.pipeline.ledger.protocol import PipelineState
from airflow_parallel_apply.pipeline.run.opening import wait_for_former

SKEWS = (timedelta(0), timedelta(hours=2), -timedelta(hours=2))


def former(*, lapsed_for: timedelta | None, skew: timedelta) -> PipelineState:
    return PipelineState(
        pipeline="p",
        log_id="log",
        routing_digest="d",
        channels=1,
        generation=7,
        owner="run 1",
        lease_until=datetime.now(UTC) + skew - (lapsed_for or -timedelta(seconds=30)),
        is_owned=lapsed_for is None,
        lapsed_for=lapsed_for,
        clean_stop_seqno=None,
    )


@pytest.mark.parametrize("skew", SKEWS)
def test_a_run_that_goes_on_is_waited_for_an_hour(skew: timedelta) -> None:
    state = former(lapsed_for=timedelta(seconds=10), skew=skew)
    with pytest.raises(LeaseBusy, match="run 1 owns the pipeline, and goes on"):
        wait_for_former(state, "run 2", lambda _: True)
    wait_for_former(state, "run 2", lambda _: False)
    wait_for_former(state, "run 1", lambda _: True)


@pytest.mark.parametrize("skew", SKEWS)
def test_behind_that_it_is_taken_for_stuck(skew: timedelta) -> None:
    wait_for_former(former(lapsed_for=timedelta(minutes=61), skew=skew), "run 2", lambda _: True)


def test_while_the_lease_lasts_the_ledger_itself_refuses() -> None:
    wait_for_former(former(lapsed_for=None, skew=timedelta(0)), "run 2", lambda _: True)
