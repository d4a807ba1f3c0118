"""Types that columns had for a while, and that no row tells the target of: `types_before` and `passed_types`.

Definitions come into the log with rows, and the target goes from one to the next. A column that was cast to another
type and on, or back, without a row in between has values that its first and last type do not show: digits were cut off,
a JSON text was read and printed. The source's event trigger tells of each step, and the log keeps the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.source.postgres.catalog.retyping import keeps_texts
from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import SignedMessage

Types = tuple[str, ...]
"""A column's types, one after the other."""


def types_before(log: LogState) -> Mapping[int, Mapping[int, Types]]:
    """By table and column, the type in the log's last definition, and behind it the one that the source last told."""
    found: dict[int, dict[int, Types]] = {}
    for relation in log.relations:
        if relation.oid is not None:
            pairs = ((one.number, one.type_name) for one in relation.columns if one.number is not None)
            found[relation.oid] = {number: _with((), name) for number, name in pairs}
    for sighting in {one.oid: one for one in log.sightings}.values():
        is_copied = any(one.oid == sighting.oid and one.below_offset > sighting.offset for one in log.passed_over)
        if sighting.names and not is_copied:
            known = found.setdefault(sighting.oid, {})
            known.update((number, _with(known.get(number, ()), name)) for number, name in sighting.types)
    return found


def passed_types(
    before: Mapping[int, Types], messages: Iterable[SignedMessage], oid: int, now: Mapping[int, str]
) -> Mapping[int, Types]:
    """The types of those columns of a table that had one in between which may have changed values. `before`: as in
    `types_before`. `now`: those that are asked for, with their types.
    """
    found = {number: before.get(number, ()) for number in now}
    shapes = [one.shape for one in messages if one.shape is not None and one.shape.oid == oid]
    for columns in (*({number: one.type_name for number, one in shape.columns.items()} for shape in shapes), now):
        found = {number: _with(types, columns.get(number)) for number, types in found.items()}
    return {number: types for number, types in found.items() if _has_lost(types)}


def _with(types: Types, type_name: str | None) -> Types:
    return types if type_name is None or types[-1:] == (type_name,) else (*types, type_name)


def _has_lost(types: Sequence[str]) -> bool:
    """True if a cast from the first type to the last may make other texts than one from each to the next."""
    return len(types) > 2 and not all(keeps_texts(one, other) for one, other in pairwise(types[:-1]))
