"""Sightings: which columns a source's table had at a moment that lies before all changes from an offset on.

The source's catalog is asked about a change later than the change was made. What it says now is only proven for the
change's own moment together with what it said before that moment, so the log keeps what was seen at each capture's
begin, and what its own event trigger sent. Only what differs from the sighting before is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

from airflow_parallel_apply.pipeline.model.offset import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One table, known by its oid. Every change whose transaction commits at or behind `offset` was made later.

    `last_number`: the greatest number that a column had until then; numbers only grow. `absent`: numbers up to it of
    columns that no relation message names: dropped ones, and virtual ones. `generated`: stored ones, which are named
    where the selection says so. `key`: the unique index that tells rows apart where whole old rows are sent, and its
    columns' numbers. `rewritten`: file numbers by oid of those parts of the table that were rewritten or truncated
    since they were made. `fills`: of columns that were made since the log's first sighting, by number, their type and
    what rows older than they hold in them, as a literal. `types`: of all columns, by number; none in a log of a version
    that did not keep them. `names`: of all columns, by number, where the source tells of each later change as it is
    made; else none. `expressions`: of computed columns, by number, as `Relation` has them. `table`: schema and name;
    None where the source does not tell of each later change, or an earlier version saw it.
    """

    oid: int
    offset: Offset
    last_number: int
    absent: tuple[int, ...] = ()
    generated: tuple[int, ...] = ()
    key: tuple[int, tuple[int, ...]] | None = None
    rewritten: tuple[tuple[int, int], ...] = ()
    fills: tuple[tuple[int, str, str], ...] = ()
    types: tuple[tuple[int, str], ...] = ()
    names: tuple[tuple[int, str], ...] = ()
    expressions: tuple[tuple[int, str], ...] = ()
    table: tuple[str, str] | None = None

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of the columns that every relation message names."""
        return frozenset(range(1, self.last_number + 1)) - {*self.absent, *self.generated}

    def is_as(self, other: Sighting) -> bool:
        """True if both saw the same."""
        return _seen(self) == _seen(other)

    def to_json(self) -> list[Any]:
        """The form that manifests carry."""
        return [
            self.oid,
            self.offset,
            self.last_number,
            self.absent,
            self.generated,
            self.key,
            self.rewritten,
            self.fills,
            self.types,
            # What versions that were never released kept.
            (),
            self.names,
            self.expressions,
            self.table,
        ]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Sighting:
        """Inverse of `to_json`."""
        oid, offset, last_number, absent, generated, key, rewritten, fills, *more = value
        no_more: tuple[Any, ...] = ((), (), (), (), None)
        types, _, names, expressions, table = (*more, *no_more[len(more) :])
        return cls(
            oid=oid,
            offset=offset,
            last_number=last_number,
            absent=tuple(absent),
            generated=tuple(generated),
            key=(key[0], tuple(key[1])) if key is not None else None,
            rewritten=tuple((part, file) for part, file in rewritten),
            fills=tuple((number, type_name, fill) for number, type_name, fill in fills),
            types=tuple((number, type_name) for number, type_name in types),
            names=tuple((number, name) for number, name in names),
            expressions=tuple((number, text) for number, text in expressions),
            table=None if table is None else tuple(table),
        )


_seen: Final = attrgetter(*(field.name for field in fields(Sighting) if field.name != "offset"))


def newer(known: Sequence[Sighting], seen: Iterable[Sighting]) -> tuple[Sighting, ...]:
    """Those that differ from the last one known of their table and their moment. `known`: in the order of offsets."""
    of_table: dict[int, list[Sighting]] = {}
    for sighting in known:
        of_table.setdefault(sighting.oid, []).append(sighting)
    return tuple(
        sighting
        for sighting in seen
        if (last := last_before(of_table.get(sighting.oid, ()), sighting.oid, sighting.offset)) is None
        or not last.is_as(sighting)
    )


def in_order(sightings: Iterable[Sighting]) -> tuple[Sighting, ...]:
    """By their moment; of one moment the last one counts."""
    return tuple(sorted(sightings, key=lambda sighting: sighting.offset))


def still_needed(sightings: Sequence[Sighting], captured_offset: Offset) -> tuple[Sighting, ...]:
    """Leave out sightings that a later one replaces for every change that is still to be captured."""
    replaced: set[int] = set()
    kept = []
    for sighting in reversed(sightings):
        if sighting.oid not in replaced:
            kept.append(sighting)
        if sighting.offset <= captured_offset:
            replaced.add(sighting.oid)
    return tuple(reversed(kept))


def last_before(sightings: Sequence[Sighting], oid: int, offset: Offset) -> Sighting | None:
    """The last one of a table before the changes of a transaction that commits at an offset."""
    return next(
        (sighting for sighting in reversed(sightings) if sighting.oid == oid and sighting.offset <= offset), None
    )
