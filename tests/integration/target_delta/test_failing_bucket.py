"""A bucket that is busy, or loses its answers, cuts them off or is late: what is committed arrives once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from airflow_parallel_apply.pipeline.errors import RetryableError, TargetError
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.support.failing_s3 import FailingS3, Faults
from tests.support.lake import LakeRig
from tests.support.lake_lane import BAG, LOOSE, TABLES, A, B, rows_of
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
