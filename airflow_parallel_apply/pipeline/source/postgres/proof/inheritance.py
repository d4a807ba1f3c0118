"""Tables that inherit from other tables than before.

Nothing of this is sent, so the target's tables still inherit as they did, and altering a parent there would alter
tables that are no longer its children at the source. A DDL message acquits, because the target runs the same statement:
for a new entry in `pg_inherits`, one in the transaction that made it; for an entry that is gone, one that says so, in
the transaction that last wrote one of the child's columns, as NO INHERIT writes those that the child has from its
parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product

from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import names_then
from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import (
    SignedMessage,
    signed_messages,
    writers_of,
)
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.histories import Pair
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import RegisteredTable
from airflow_parallel_apply.postgres.quoting import quoted

Link = tuple[int, int]
"""The oids of a child and of its parent."""


@dataclass(frozen=True, slots=True)
class Altered:
    """How a table's inheritance changed. `what`: for people. `ended` and `begun`: the statements by which the target
    follows, with the names that its tables have until it is told others.
    """

    what: tuple[str, ...]
    ended: tuple[str, ...]
    begun: tuple[str, ...]


def altered_inheritance(
    pending: Pending, pairs: Sequence[Pair], registered: Mapping[int, RegisteredTable]
) -> Iterator[tuple[Pair, Altered]]:
    """Yield the tables whose inheritance changed as far as a followed table is above, unless the target is told.
    `registered`: the followed tables as they were, by oid. Errors: psycopg's own.
    """
    changed = {pair: links for pair in pairs if (links := _changed(pair, registered))}
    if not changed:
        return
    messages = signed_messages(pending)
    oids = {oid for links in changed.values() for link in links for oid in link}
    names = names_then(pending.connection, oids)
    before = {oid: (registered[oid].schema, registered[oid].table) for oid in oids & registered.keys()}
    called = {oid: {one[oid][1] for one in (before, names) if oid in one} for oid in oids}
    names |= before
    for pair, links in changed.items():
        untold = {link: both for link, both in links.items() if not _is_told(link, *both, pair[1], messages, called)}
        if untold:
            yield pair, _altered(untold, names)


def _changed(pair: Pair, registered: Mapping[int, RegisteredTable]) -> dict[Link, tuple[int, int]]:
    """The versions of the table's entries that came, went or were made anew, before and now; 0 where there is none. A
    followed table that is above has its own.
    """
    before, after = pair
    if before.links is None or after.links is None:
        return {}
    then, now = ({(child, parent): version for child, parent, version in one} for one in (before.links, after.links))
    return {
        link: (then.get(link, 0), now.get(link, 0))
        for link in sorted(then.keys() | now.keys())
        if then.get(link) != now.get(link)
        and (link[0] == before.oid or link[0] not in registered)
        and (_reaches(link[1], then, registered) or _reaches(link[1], now, registered))
    }


def _reaches(oid: int, links: Mapping[Link, int], registered: Mapping[int, RegisteredTable]) -> bool:
    """True if a table, or one that it inherits from, is followed."""
    return oid in registered or any(_reaches(parent, links, registered) for child, parent in links if child == oid)


def _is_told(
    link: Link,
    before: int,
    now: int,
    table: RegisteredTable,
    messages: Sequence[SignedMessage],
    called: Mapping[int, Set[str]],
) -> bool:
    """`called`: the names by which statements may call the tables."""
    namings = [*product(*(called[oid] or {""} for oid in link))]

    def telling(words: str) -> frozenset[int]:
        return writers_of(one for one in messages if any(one.mentions(words, *naming) for naming in namings))

    if now and now not in telling("inherits?"):
        return False
    if not before:
        return True
    ends = telling(r"no\s+inherit")
    # What is made again writes the columns again.
    return bool(ends if now else ends.intersection(table.versions))


def _altered(links: Mapping[Link, tuple[int, int]], names: Mapping[int, tuple[str, str]]) -> Altered:
    what, ended, begun = [], [], []
    for (child, parent), (before, now) in links.items():
        if child not in names:
            continue
        is_named = parent in names
        name = ".".join(names[parent]) if is_named else "a table that is gone"
        again = " again" if before else ""
        what.append(f"inherits from {name}{again}" if now else f"does not inherit from {name} any more")
        if not is_named:
            continue
        alter = f"ALTER TABLE {quoted(*names[child])}"
        if before:
            ended.append(f"{alter} NO INHERIT {quoted(*names[parent])}")
        if now:
            begun.append(f"{alter} INHERIT {quoted(*names[parent])}")
    return Altered(tuple(what), tuple(ended), tuple(begun))
