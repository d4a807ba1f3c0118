"""A group's commit names its parts in a task that the queue's service takes."""

from __future__ import annotations

import json

from airflow_parallel_apply.pipeline.apply.committer.group import named_part
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, StagedTable, StagedUnit, Unit
from airflow_parallel_apply.queue.service.limits import ServiceLimits

CHANNELS = 4


def part_of(channel: int, tables: int) -> StagedUnit:
    unit = Unit(
        pipeline="p",
        generation=1,
        kind=GroupPart(1, channel, prepares=False),
        channels=CHANNELS,
        token="t",
        after_seqno=0,
        last_seqno=9,
        row_count=tables,
    )
    path = f"p/group-1/{channel}/{'x' * 400}"
    staged = StagedTable(relation_id=1, staging=path, inserts=1, updates=0, deletes=0, has_unsent=False)
    return StagedUnit(unit=unit, tables=(staged,) * tables, row_count=tables, seconds=0.0)


def test_parts_of_many_tables_with_long_names_are_not_named() -> None:
    for tables in (10, 300, 1_200):
        arrived = {channel: named_part(part_of(channel, tables)) for channel in range(CHANNELS)}
        ServiceLimits().check_value(json.dumps({"arrived": arrived}))
        assert (arrived[0] is None) == (tables == 1_200)
