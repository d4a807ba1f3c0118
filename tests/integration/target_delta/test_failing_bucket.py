"""A bucket whose answers are lost, late or errors: what is there afterwards is there once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest
from pyarrow import fs

from airflow_parallel_apply.pipeline.errors import RetryableError
from airflow_parallel_apply.pipeline.model.change import ReplicaIdentity
from tests.support.faulty_bucket import Fault, FaultyBucket, faulty_bucket
from tests.support.lake import LakeRig
from tests.support.log_rows import Row, relation

A = relation(1, "a", "id v", key="id")
BAG = replace(relation(2, "bag", "v"), replica_identity=ReplicaIdentity.FULL)
_numbers = count()


@pytest.fixture(scope="module")
def bucket() -> Iterator[FaultyBucket]:
    with faulty_bucket() as found:
        files = fs.S3FileSystem(
            access_key="k", secret_key="s", endpoint_override=found.address, scheme="http", allow_bucket_creation=True
        )
        files.create_dir("lake")
        yield found


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize(
    "pattern",
    [r"PUT \S*/public/a/_delta_log/0", r"PUT \S*/positions/_delta_log/0", r"PUT \S*\.parquet", r"(GET|HEAD) "],
    ids=["a table's commit", "a position's commit", "data", "reads"],
)
def test_a_unit_is_there_once_whatever_becomes_of_an_answer(bucket: FaultyBucket, fault: Fault, pattern: str) -> None:
    rig = LakeRig(
        f"delta+s3://key:secret@lake/l{next(_numbers)}?region=us-east-1&endpoint_url=http://{bucket.address}", [A, BAG]
    ).begin()
    expected = []
    for seqno in range(3):
        bucket.meet(fault, pattern, times=1 if seqno < 2 else 3)
        rows = [Row(seqno=seqno, operation="I", values=(f"k{seqno}", "v")), *_bag(seqno)]
        rows += [Row(seqno=seqno, operation="U", values=("k0", str(seqno)))] if seqno else []
        for _ in range(10):
            try:
                if rig.seqnos()[0] < seqno:
                    rig.apply(seqno - 1, seqno, rows, claim=f"claim {next(_numbers)}")
                break
            except RetryableError:
                continue
        assert bucket.met
        expected.append(f"k{seqno}")
        assert rig.seqnos() == [seqno]
        assert [row[0] for row in rig.rows(A)] == expected
        assert rig.rows(BAG) == [("x",)] * (seqno + 1)
    assert rig.rows(A)[0] == ("k0", "2")


def _bag(seqno: int) -> list[Row]:
    """Two equal rows come, and from the second unit on one goes."""
    added = [Row(seqno=seqno, operation="I", values=("x",), relation_id=2) for _ in range(2 if seqno else 1)]
    return [*added, *([Row(seqno=seqno, operation="D", values=("x",), relation_id=2)] if seqno else [])]
