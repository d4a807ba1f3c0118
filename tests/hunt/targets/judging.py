"""The rules of a green run: a target's tables are the source's; a feed has each change once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import Operation
from tests.support.rig import Rig

Place = tuple[int, int]
"""A change in the log: seqno and fragno."""
_SHOWN: Final = 3


def unequal_tables(rig: Rig, *, but: Collection[str] = ()) -> list[str]:
    """The tables that `compare` finds to differ. A table without rows need not be there. `but`: tables by name."""
    return [
        f"{table.name}: {table.source_rows} rows, {table.target_rows} at the target; {table.problem or ''} "
        + "; ".join(map(str, table.differences[:_SHOWN]))
        for table in rig.comparison().tables
        if not table.equal and (table.source_rows or table.target_rows) and table.name not in but
    ]


def unlike_the_log(rig: Rig, found: Iterable[Place]) -> list[str]:
    """The changes that a feed lacks, has more than once, or has without the log having them."""
    wanted = Counter(changes_of(rig))
    first = open_reader(rig.config.log_url).state().purged_seqno
    feed = Counter(place for place in found if place[0] > first)
    lacking, surplus = sorted(wanted - feed), sorted(feed - wanted)
    return [
        f"{len(places)} changes {how}, such as {places[:_SHOWN]}"
        for places, how in ((lacking, "are missing in the feed"), (surplus, "are in the feed too often"))
        if places
    ]


def changes_of(rig: Rig) -> list[Place]:
    """The changes that the log has, but for messages."""
    reader = open_reader(rig.config.log_url)
    state = reader.state()
    places: list[Place] = []
    for batch in reader.rows(state.purged_seqno, state.last_seqno):
        changes = batch.filter(pc.not_equal(batch.column("operation"), Operation.MESSAGE.value))
        places += zip(changes.column("seqno").to_pylist(), changes.column("fragno").to_pylist(), strict=True)
    return places


def redefined(rig: Rig) -> set[str]:
    """The tables that the log knows under several definitions: a feed's older rows have the older one's columns."""
    names = Counter(relation.name for relation in open_reader(rig.config.log_url).state().relations)
    return {name for name, count in names.items() if count > 1}
