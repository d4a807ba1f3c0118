"""A bucket that is busy, or loses its answers, cuts them off or is late: what is committed arrives once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from airflow_parallel_apply.pipeline.errors import RetryableError, TargetError
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.support.failing_s3 import FailingS3, Faults
from tests.support.lake import LakeRig
from tests.support.lake_lane import BAG, LOOSE, TABLES, A, B, rows_of
from tests.support.log_rows import Row
from tests.support.variants import gated

OFTEN = Faults(busy=0.04, lost=0.04, cut=0.02, late=0.01, seconds=4)


@pytest.fixture(scope="module")
def s3() -> Iterator[FailingS3]:
    with FailingS3() as found:
        yield found


@pytest.fixture
def rig(s3: FailingS3) -> LakeRig:
    s3.fail(Faults())
    return LakeRig(s3.url("delta", uuid4().hex), TABLES).begin()


def unit(rig: LakeRig, last: int) -> bool:
    """One or two transactions under a claim of their own; True when the last one is there."""
    claim = uuid4().hex
    target = rig.open()
    reached = target.take(0, generation=1, token=claim).seqno
    if reached == last:
        return True
    end = min(reached + 1 + reached % 2, last)
    made = rig.unit(reached, end, claim=claim)
    rows = [row for seqno in range(reached + 1, end + 1) for row in rows_of(seqno)]
    target.commit(made, [Merge(rig.stage(made, rows))])
    return False


def require_exact(rig: LakeRig, last: int) -> None:
    expected = sorted([("0", str(last)), *((f"k{seqno}", str(seqno)) for seqno in range(last + 1))])
    assert rig.rows(A) == rig.rows(B) == expected
    assert sorted(rig.rows(LOOSE)) == sorted((str(seqno),) for seqno in range(last + 1))
    assert rig.rows(BAG) == [("x",)] * (last + 1)


@pytest.mark.timeout(1200)
@gated
def test_units_arrive_once_whatever_becomes_of_requests(s3: FailingS3, rig: LakeRig) -> None:
    """As a lane does it: what passes is tried again."""
    last, before, is_last = 4, s3.fail(replace(OFTEN, seed=1)), False
    while not is_last:
        # No bound but the test's own: how long a unit takes is the machine's.
        with suppress(RetryableError):
            is_last = unit(rig, last)
    assert s3.fail(Faults()) > before
    require_exact(rig, last)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_channels_that_lose_answers_know_their_own_commits(s3: FailingS3) -> None:
    """A conditional write that is tried again may be refused for itself."""
    s3.fail(Faults())
    rig, last = LakeRig(s3.url("delta", uuid4().hex), [A, B], channels=4).begin(), 2
    before = s3.fail(Faults(lost=0.05, seed=1))

    def is_ended(channel: int) -> bool:
        claim, target = uuid4().hex, rig.open()
        reached = target.take(channel, generation=1, token=claim).seqno
        if reached == last:
            return True
        made = rig.unit(reached, reached + 1, claim=claim, channel=channel)
        values = (f"{channel} {reached + 1}", "x")
        rows = [Row(seqno=reached + 1, operation="I", values=values, relation_id=of) for of in (1, 2)]
        target.commit(made, [Merge(rig.stage(made, rows))])
        return False

    def lane(channel: int) -> None:
        is_last = False
        while not is_last:
            with suppress(RetryableError):
                is_last = is_ended(channel)

    with ThreadPoolExecutor(4) as lanes:
        list(lanes.map(lane, range(4)))
    assert s3.fail(Faults()) > before
    expected = sorted((f"{channel} {seqno}", "x") for channel in range(4) for seqno in range(last + 1))
    assert rig.rows(A) == rig.rows(B) == expected
    assert rig.seqnos() == [last] * 4


@gated
def test_a_bucket_that_may_not_be_written_is_no_outage(s3: FailingS3, rig: LakeRig) -> None:
    unit(rig, 2)
    s3.fail(Faults(denied=True))
    with pytest.raises(TargetError, match="privileges") as refused:
        unit(rig, 2)
    assert "right to write" in (refused.value.hint or "")
    s3.fail(Faults())
    while not unit(rig, 2):
        pass
    require_exact(rig, 2)
