"""The registration as a log keeps it, and as logs of older versions do."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_parallel_apply.pipeline.log.protocol import ResumePoint
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import (
    Bounds,
    Partition,
    RegisteredTable,
    Registration,
    RemovedPart,
)

_TABLE = RegisteredTable(
    oid=5, schema="public", table="child", kind="r", is_partition=False, membership=6, publication=7, touched="8 9",
    filenode=5, versions=(3, 3, 0), labels=((11, "sad", 4),), attributes=((12, "1 2/2"),), links=((5, 2, 3),),
)  # fmt: skip
_BOUNDS = Bounds(rows="(id < 10)", keys=((1, "id", "integer"),))
_PARTED = replace(
    _TABLE,
    partitions=(Partition(oid=8, parent=5, schema="s", table="p", kind="r", link=3, filenode=8, bounds=_BOUNDS),),
)


def _removed(oid: int, lsn: int) -> RemovedPart:
    return RemovedPart(oid=oid, root=5, lsn=lsn, bounds=_BOUNDS)


def test_a_registration_is_read_as_it_was_written() -> None:
    registration = Registration(
        server="1",
        tables=(_PARTED,),
        horizon=10,
        ahead=12,
        since=((5, 100),),
        left=((6, 90),),
        removed=(_removed(8, 80),),
    )
    assert Registration.from_text(registration.to_text()) == registration


@pytest.mark.parametrize(("xid", "horizon"), [(None, 2**33), (5, 2**33 + 6), (20, 2**33 + 12), (2**32 - 9, 2**33)])
@pytest.mark.parametrize("table_count", [1, 51])
def test_a_horizon_counts_as_far_as_the_last_transaction_of_the_log(
    xid: int | None, horizon: int, table_count: int
) -> None:
    tables = (_TABLE,) * table_count
    resume = ResumePoint(offset=900, xid=xid)
    known = Registration(server="1", tables=(), horizon=2**33)
    assert known.looked_at(tables, 2**33 + 12, resume, has_new_types=False).seen_from(resume).horizon == horizon


def test_a_large_registration_keeps_its_horizon_for_long() -> None:
    known = Registration(server="1", tables=(_TABLE,) * 51, horizon=1000)
    for xid, is_kept in ((1001, True), (100_998, True), (100_999, False)):
        resume = ResumePoint(offset=900, xid=xid)
        assert (known.looked_at(known.tables, 200_000, resume, has_new_types=False) == known) is is_kept
    resume = ResumePoint(offset=900, xid=1001)
    moved = known.looked_at(known.tables, 200_000, resume, has_new_types=True)
    assert (moved.ahead, moved.seen_from(resume).horizon) == (200_000, 1002)


def test_a_horizon_of_an_older_version_counts_as_far_as_the_last_transaction_of_the_log() -> None:
    value = json.loads(Registration(server="1", tables=(_TABLE,), horizon=10).to_text())
    del value["ahead"]
    older = Registration.from_text(json.dumps(value))
    assert [older.seen_from(ResumePoint(offset=900, xid=xid)).horizon for xid in (5, 20)] == [6, 10]
    del value["horizon"]
    assert Registration.from_text(json.dumps(value)).horizon is None


def test_a_log_of_an_older_version_does_not_say_what_its_tables_inherited_from() -> None:
    value = json.loads(Registration(server="1", tables=(_TABLE,), horizon=10).to_text())
    value["tables"][0].pop()
    (read,) = Registration.from_text(json.dumps(value)).tables
    assert read.links is None
    assert read.attributes == _TABLE.attributes


def test_what_was_captured_before_a_table_counts_is_not_kept() -> None:
    seven, eight, nine = (replace(_TABLE, oid=oid) for oid in (7, 8, 9))
    registration = Registration(server="1", tables=(_TABLE,)).entering([seven], 100, captured_lsn=90)
    assert registration.tables == (_TABLE, replace(seven, is_entering=True))
    assert Registration.from_text(registration.to_text()) == registration
    assert registration.since == ((7, 100),)
    assert registration.entering([nine, eight], 120, captured_lsn=99).since == ((7, 100), (8, 120), (9, 120))
    assert registration.entering([eight], 120, captured_lsn=100).since == ((8, 120),)
    assert registration.entering([eight], 120, captured_lsn=90).having(_TABLE, seven).since == ((8, 120),)


def test_tables_that_were_left_count_up_to_there() -> None:
    registration = Registration(server="1", tables=(_TABLE,)).leaving([6], 100, None)
    assert registration.leaving([7], 120, ResumePoint(offset=99)).left == ((6, 100), (7, 120))
    assert registration.leaving([7], 120, ResumePoint(offset=100)).left == ((7, 120),)


def test_partitions_that_are_told_to_be_gone_had_rows_up_to_there() -> None:
    registration = Registration(server="1", tables=(_TABLE,)).removing([_removed(8, 100)], None)
    for part, offset, found in (
        (_removed(9, 120), 99, (_removed(8, 100), _removed(9, 120))),
        (_removed(8, 120), 99, (_removed(8, 120),)),
        (_removed(9, 120), 100, (_removed(9, 120),)),
    ):
        assert registration.removing([part], ResumePoint(offset=offset)).removed == found


def test_what_rows_a_partition_has_is_kept_and_makes_it_no_other_one() -> None:
    (part,) = Registration.from_text(Registration(server="1", tables=(_PARTED,)).to_text()).tables[0].partitions
    assert part.bounds == _BOUNDS
    assert part == replace(part, bounds=None)
