"""A Delta lake in a bucket of a local S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from pyarrow import fs

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.delta import tables
from airflow_parallel_apply.pipeline.target.delta.connector import DeltaConnector
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.support.failing_s3 import FailingS3, Faults
from tests.support.lake import LakeRig
from tests.support.log_rows import Row, relation
from tests.support.variants import gated

A = relation(1, "a", "id v", key="id")
_names = count()
B = relation(2, "b", "id v", key="id")


@pytest.fixture(scope="module")
def s3() -> Iterator[FailingS3]:
    with FailingS3() as found:
        yield found


@pytest.fixture
def rig(s3: FailingS3, request: pytest.FixtureRequest) -> LakeRig:
    s3.fail(Faults())
    name = request.node.name.partition("[")[0] + str(next(_names))
    return LakeRig(s3.url("delta", name), [A, B], channels=4).begin()


def rows(seqno: int, operation: str, *keys: str) -> list[Row]:
    return [
        Row(seqno=seqno, operation=operation, values=(key, f"v{seqno}"), relation_id=of)
        for key in keys
        for of in (1, 2)
    ]


@gated
def test_units_are_merged_and_their_staging_goes(rig: LakeRig) -> None:
    rig.apply(-1, 1, rows(1, "I", "1", "2"))
    rig.apply(1, 2, [*rows(2, "U", "1"), *rows(2, "D", "2")])
    assert rig.rows(A) == rig.rows(B) == [("1", "v2")]
    assert rig.seqnos() == [2, -1, -1, -1]
    staged = fs.FileSelector(f"{rig.lake.path(rig.lake.root)}/_parallel_apply/demo/staged", True, True)
    assert [info for info in rig.lake.files.get_file_info(staged) if info.type is fs.FileType.File] == []


@gated
def test_a_former_owner_is_refused_by_the_bucket(rig: LakeRig) -> None:
    former = rig.open()
    former.take(0, generation=1, token="former")
    unit = rig.unit(-1, 5, claim="former")
    staged = rig.stage(unit, rows(5, "I", "1"))
    rig.apply(-1, 3, rows(3, "I", "1"), claim="next")
    with pytest.raises(OwnershipLost):
        former.commit(unit, [Merge(staged)])
    assert rig.rows(A) == [("1", "v3")]


@gated
@pytest.mark.parametrize("units_each", [1, pytest.param(3, marks=pytest.mark.long)])
def test_channels_that_commit_at_the_same_time_all_arrive_once(rig: LakeRig, units_each: int) -> None:
    def units(channel: int) -> None:
        for seqno in range(units_each):
            rig.apply(
                seqno - 1, seqno, rows(seqno, "I", f"{channel} {seqno}"), claim=f"{channel} {seqno}", channel=channel
            )

    with ThreadPoolExecutor(4) as lanes:
        list(lanes.map(units, range(4)))
    assert [row[0] for row in rig.rows(A)] == sorted(
        f"{channel} {seqno}" for channel in range(4) for seqno in range(units_each)
    )
    assert rig.rows(A) == rig.rows(B)
    assert rig.seqnos() == [units_each - 1] * 4


def test_the_bucket_is_probed_and_tells_whose_log_it_has(rig: LakeRig) -> None:
    connector = DeltaConnector()
    connector.probe(rig.endpoint)
    assert connector.applied_logs(rig.endpoint) == {"demo": "log"}
    rig.open().drop(force=False)
    assert connector.applied_logs(rig.endpoint) == {}
    nowhere = Endpoint(conn_id="target", url=rig.url.replace("s3://key:secret@lake", "s3://key:secret@no-such-bucket"))
    with pytest.raises(Unavailable):
        connector.probe(nowhere)


@gated
def test_many_lanes_at_one_positions_table_all_move_it(rig: LakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim is a compare and swap of one table: who loses waits, and nobody starves."""
    lanes, claims = 8, 4
    rig.open().lay_out(log_id="log", routing=Routing(channels=lanes), generation=1)
    lost: list[float] = []
    wait = tables._PAUSE.__call__
    monkeypatch.setattr(type(tables._PAUSE), "__call__", lambda self, state: lost.append(wait(state)) or lost[-1])

    def claim(channel: int) -> None:
        target = rig.open()
        for number in range(claims):
            target.take(channel, generation=1, token=f"{channel} {number}")

    with ThreadPoolExecutor(lanes) as pool:
        list(pool.map(claim, range(lanes)))
    assert [at.claim for at in rig.open().positions()] == [f"{channel} {claims - 1}" for channel in range(lanes)]
    assert lost, "they met"
    assert all(pause <= 1 for pause in lost)
