"""Sightings that the source itself sent: `parallel_apply.capture_ddl` writes one at each change of a definition.

They lie in the stream where the change does, so nothing can have happened in between: no default was dropped again, no
column was created anew, no rewrite removed the traces of what older rows hold. Without them the catalog is asked later,
and what it can no longer prove stops the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.sent_ddl import NamesThen
from airflow_parallel_apply.pipeline.model.sighting import Sighting, last_before
from airflow_parallel_apply.pipeline.source.postgres.catalog.history import (
    fills_of_rows,
    knowing,
    new_numbers,
    with_proven,
)
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import shape_of_row
from airflow_parallel_apply.pipeline.source.postgres.ddl.ddl_messages import SCHEMA_VERSION, VERSION
from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import SignedMessage
from airflow_parallel_apply.pipeline.source.protocol import Definitions

_ALTERS_TEXTS: Final = r"rename\s+value|attribute"
"""Words of DDL that alters what values of enums and composite types print."""
OF_A_SCHEMA: Final = "."
"""In the name of each type that is not built in."""


class SentSightings:
    """Those of one read of the slot, kept in the log. `names`: the columns that a table has now, by number.
    `skipped`: as a registration has it. Not thread-safe.
    """

    def __init__(
        self, definitions: Definitions, names: Callable[[int], Mapping[int, str]], skipped: Mapping[int, int]
    ) -> None:
        self._definitions = definitions
        self._names = names
        self._skipped = skipped
        self._commit_lsn = -1
        self._here: dict[int, Sighting] = {}
        """The sightings of the transaction that commits at `_commit_lsn`, by table."""
        self._altering: list[SignedMessage] = []
        """The DDL that this transaction has sent so far, as far as it may alter types."""
        self._known: tuple[Sighting, ...] = ()
        self._of_table: dict[int, list[Sighting]] = {}
        """The known ones by table."""

    def take(self, commit_lsn: int, content: bytes) -> None:
        """One message's. Later sightings of the table gain what it proves of older rows."""
        sent = json.loads(content)
        if sent["version"] == SCHEMA_VERSION:
            self._move(commit_lsn, sent["tables"], sent["schema"])
        if sent["version"] != VERSION:
            return
        shape = shape_of_row(sent["shape"])
        before = knowing(self.before(shape.oid, commit_lsn), self._skipped)
        # What an earlier version's trigger sends is printed under the settings of the session that it ran in.
        is_exact = sent.get("is_exact", False)
        proven = fills_of_rows(sent["fills"], new_numbers(shape, before), before) if is_exact else {}
        made = with_proven(shape.sighting(commit_lsn + 1, is_told=True), shape, proven, before)
        self._begin(commit_lsn)
        self._keep(made, self._altered(made))

    def take_ddl(self, commit_lsn: int, text: str) -> None:
        """DDL that was sent. Where it may give a column another type, or the same one by an expression, or alters what
        a value of its type prints, what was proven of rows older than the column holds no more.
        """
        message = SignedMessage(xid=0, ddl=text)
        if not message.mentions("type"):
            return
        self._begin(commit_lsn)
        self._altering.append(message)
        for oid in {sighting.oid for sighting in self._definitions.sightings() if sighting.fills}:
            before = self.before(oid, commit_lsn)
            if before is not None and (lost := self._altered(before)):
                self._keep(replace(before, offset=commit_lsn + 1), lost)

    def untold_names(self, commit_lsn: int) -> tuple[NamesThen, ...]:
        """The names at this place of the transaction of those tables that have, or had a while before, other ones than
        the log's last definitions, or columns with such, or now with other types, as far as the source tells of each
        change. A target may have names of any time in between.
        """
        return tuple(
            NamesThen(oid=seen.oid, table=seen.table, columns=dict(seen.names), types=_other_types(seen, relation))
            for relation in self._definitions.latest_relations()
            if relation.oid is not None
            and (seen := self.before(relation.oid, commit_lsn)) is not None
            and seen.names
            and (
                any(_are_others(one, relation) for one in (seen, *self._of(relation.oid)) if one.names)
                or _other_types(seen, relation)
            )
        )

    def before(self, oid: int, commit_lsn: int) -> Sighting | None:
        """The last sighting of a table before what comes next in the transaction that commits at an LSN."""
        if commit_lsn == self._commit_lsn and oid in self._here:
            return self._here[oid]
        return last_before(self._of(oid), oid, commit_lsn)

    def _move(self, commit_lsn: int, oids: Iterable[int], schema: str) -> None:
        """Tables whose schema has another name."""
        self._begin(commit_lsn)
        for oid in oids:
            before = self.before(oid, commit_lsn)
            if before is not None and before.table is not None:
                self._keep(replace(before, offset=commit_lsn + 1, table=(schema, before.table[1])), frozenset())

    def _begin(self, commit_lsn: int) -> None:
        """The next messages are of the transaction that commits there."""
        if commit_lsn != self._commit_lsn:
            self._commit_lsn, self._here, self._altering = commit_lsn, {}, []

    def _altered(self, sighting: Sighting) -> frozenset[int]:
        """The columns whose older values are known and print another text behind this transaction's DDL, perhaps."""
        if not sighting.fills or not self._altering:
            return frozenset()
        names = dict(sighting.names) or self._names(sighting.oid)
        return frozenset(
            number
            for number, type_name, _ in sighting.fills
            if number not in names
            or any(
                message.retypes(names[number]) or (OF_A_SCHEMA in type_name and message.mentions(_ALTERS_TEXTS))
                for message in self._altering
            )
        )

    def _keep(self, made: Sighting, lost: frozenset[int]) -> None:
        """A sighting of this transaction. `lost`: the columns whose older values are not known behind it."""
        made = _without(made, lost)
        self._here[made.oid] = made
        # Of one moment the last one counts.
        later = {other.offset: other for other in self._of(made.oid) if other.offset > made.offset}
        self._definitions.see([made])
        self._definitions.see(
            replace(one, fills=_merged(made, _without(one, lost)))
            for one in later.values()
            if made.offset > self._skipped.get(made.oid, 0)
        )

    def _of(self, oid: int) -> list[Sighting]:
        known = self._definitions.sightings()
        if known is not self._known:
            self._known, self._of_table = known, {}
            for sighting in known:
                self._of_table.setdefault(sighting.oid, []).append(sighting)
        return self._of_table.get(oid, [])


def _merged(made: Sighting, other: Sighting) -> tuple[tuple[int, str, str], ...]:
    known = {number for number, _, _ in other.fills}
    return tuple(sorted((*other.fills, *(fill for fill in made.fills if fill[0] not in known))))


def _without(sighting: Sighting, lost: frozenset[int]) -> Sighting:
    return replace(sighting, fills=tuple(fill for fill in sighting.fills if fill[0] not in lost))


def _are_others(seen: Sighting, relation: Relation) -> bool:
    names, logged = dict(seen.names), ((one.number, one.name) for one in relation.columns if one.number is not None)
    is_renamed = seen.table not in (None, (relation.schema, relation.table))
    return is_renamed or any(names.get(number) != name for number, name in logged)


def _other_types(seen: Sighting, relation: Relation) -> Mapping[int, str]:
    """The types, or what computes them, of the columns of which a definition says another, or nothing."""
    expressions = dict(relation.expressions)
    logged = {one.number: one.type_name for one in relation.columns if not one.generated}
    computed = {one.number: one.name for one in relation.columns if one.generated}
    computed |= dict(zip(relation.computed_numbers or (), relation.computed or (), strict=False))
    logged |= {number: expressions[name] for number, name in computed.items() if name in expressions}
    now = {**dict(seen.types), **dict(seen.expressions)}
    return {number: text for number, text in now.items() if logged.get(number) != text}
