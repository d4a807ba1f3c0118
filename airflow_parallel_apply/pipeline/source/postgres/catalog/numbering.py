"""Finds which column of its table each column of a relation message is.

The message has the names and types of its own moment. The catalog has those of now, when a name may belong to another
column. A column is identified by its number, which no other column ever gets. What is proven: a message names its
columns in the order of their numbers; numbers are given in the order in which columns are made; a column that was there
before the message and is there now was there in between; and one that was gone before it does not come back. What that
leaves open is decided by types, if only one solution fits what is known of them; otherwise it stays open.

Names prove nothing: a name passes on when its column is renamed or dropped. Nor do transaction ids: they are assigned
in another order than transactions commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

_MOST_WAYS: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The knowledge of a table's columns at one moment. `present`: those that a message named. `perhaps`: those that it
    may have named. `last`: the greatest number given until then.
    """

    present: frozenset[int]
    perhaps: frozenset[int] = frozenset()
    last: int


def settle(
    types: Sequence[str], *, earlier: Sequence[Moment], now: Moment, can_be: Callable[[int, str], bool]
) -> tuple[int | None, ...]:
    """The numbers of columns that are of some types, None where they cannot be told. `earlier`: moments before the
    message. `can_be`: whether a column can have been of a type at the message.
    """
    ways = list(islice(_ways(len(types), earlier, now), _MOST_WAYS + 1))
    if not ways or len(ways) > _MOST_WAYS:
        return tuple(None for _ in types)
    if len(ways) > 1:
        fitting = [way for way in ways if all(map(can_be, way, types))]
        ways = fitting or ways
    return tuple(places[0] if len(set(places)) == 1 else None for places in zip(*ways, strict=True))


def _ways(count: int, earlier: Sequence[Moment], now: Moment) -> Iterator[tuple[int, ...]]:
    """All sets of columns that the message can have named."""
    last = max((moment.last for moment in earlier), default=0)
    sure = frozenset[int]().union(*(moment.present for moment in earlier)) & now.present
    born = sorted(number for number in now.present if number > last)
    if not born and count == len(sure):
        yield tuple(sorted(sure))
        return
    gone = {
        number
        for moment in earlier
        for number in range(1, moment.last + 1)
        if number not in moment.present and number not in moment.perhaps
    }
    open_numbers = [number for number in range(1, now.last + 1) if number not in sure and number not in gone]
    # Of the new ones that are there now, the message names all up to one, and none above it.
    for made in range(len(born) + 1):
        end = born[made] if made < len(born) else now.last + 1
        perhaps = [number for number in open_numbers if number not in born and number < end]
        wanted = count - len(sure) - made
        if wanted >= 0:
            for chosen in combinations(perhaps, wanted):
                yield tuple(sorted((*sure, *born[:made], *chosen)))
