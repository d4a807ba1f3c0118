"""Sightings that the source itself sent: `parallel_apply.capture_ddl` writes one at each change of a definition.

They lie in the stream where the change does, so nothing can have happened in between: no default was dropped again, no
column was created anew, no rewrite removed the traces of what older rows hold. Without them the catalog is asked later,
and what it can no longer prove stops the run.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from airflow_parallel_apply.pipeline.model.sighting import Sighting, last_before
from airflow_parallel_apply.pipeline.source.postgres.catalog.history import fills_of_rows, new_numbers, with_proven
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import shape_of_row
from airflow_parallel_apply.pipeline.source.protocol import Definitions

VERSION: Final = 1
"""Version of a message's contents; messages of others are skipped, since they prove no more than their absence does."""


class SentSightings:
    """Those of one read of the slot, kept in the log. Not thread-safe."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._commit_lsn = -1
        self._here: dict[int, Sighting] = {}
        """The sightings of the transaction that commits at `_commit_lsn`, by table."""
        self._known: tuple[Sighting, ...] = ()
        self._of_table: dict[int, list[Sighting]] = {}
        """The known ones by table."""

    def take(self, commit_lsn: int, content: bytes) -> None:
        """One message's. Later sightings of the table gain what it proves of older rows."""
        sent = json.loads(content)
        if sent["version"] != VERSION:
            return
        shape = shape_of_row(sent["shape"])
        before = self.before(shape.oid, commit_lsn)
        # What an earlier version's trigger sends is printed under the settings of the session that it ran in.
        is_exact = sent.get("is_exact", False)
        proven = fills_of_rows(sent["fills"], new_numbers(shape, before), before) if is_exact else {}
        made = with_proven(shape.sighting(commit_lsn + 1, is_told=True), shape, proven, before)
        if commit_lsn != self._commit_lsn:
            self._commit_lsn, self._here = commit_lsn, {}
        self._here[shape.oid] = made
        later = [
            replace(other, fills=_merged(made, other)) for other in self._of(shape.oid) if other.offset > made.offset
        ]
        self._definitions.see([made])
        self._definitions.see(later)

    def before(self, oid: int, commit_lsn: int) -> Sighting | None:
        """The last sighting of a table before what comes next in the transaction that commits at an LSN."""
        if commit_lsn == self._commit_lsn and oid in self._here:
            return self._here[oid]
        return last_before(self._of(oid), oid, commit_lsn)

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
