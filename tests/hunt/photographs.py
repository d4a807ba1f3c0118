"""The source as it was at a moment, beside which the target is held when a run has ended there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from tests.hunt.oracle import differences, tell_definitions
from tests.hunt.rigs import SCHEMAS
from tests.hunt.step import Step
from tests.hunt.verdicts import Caught

if TYPE_CHECKING:
    from tests.hunt.player import Player

_TREES: Final = """
SELECT n.nspname || '.' || c.relname,
    array(SELECT c.oid UNION SELECT relid::oid FROM pg_partition_tree(c.oid) ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = ANY(%s)
"""
"""Tables, and their partitions: a copy of a database has them by the same oids."""
_WRITES: Final = {"source", "transaction", "bound", "moment"}
"""Steps that leave the target where it is."""
_RUNS: Final = {"bounded", "interval"}
"""Runs that end no later than the one before them, or are looked at by their number."""


class Photographs:
    """Those of one trial, by name. Of a target in PostgreSQL only."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._taken: dict[str, tuple[str, int]] = {}
        """The address of each, and how many steps lay before it."""

    def take(self, name: str) -> None:
        """Copy the source's database; a row of each table tells its definition first."""
        if self._player.hunted is None:
            tell_definitions(self._player.rig_of_judge.source_dsn, SCHEMAS)
            if dsn := self._player.world.photograph(name):
                self._taken[name] = dsn, len(self._player.past)

    def compare(self, name: str) -> None:
        """A green run has ended at that moment; nothing, where others may have gone beyond it. Errors: `Caught`.

        Tables that are called otherwise since, or have other partitions, are left out: nothing in the log says so, and
        a run takes them as they are by now.
        """
        dsn, place = self._taken.get(name, ("", 0))
        this = self._player.past[-1]
        if not dsn or not all(_stays(step, this) for step in self._player.past[place:-1]):
            return
        rig = self._player.rig_of_judge
        then, now = _trees(dsn), _trees(rig.source_dsn)
        others = [name for name, tree in then.items() if now.get(name) != tree]
        if found := differences(dsn, rig.target_dsn, SCHEMAS, known=(), but=(*rig.config.tables.exclude, *others)):
            raise Caught("green and different", f"up to a bound: {' | '.join(found)}")


def _stays(step: Step, this: Step) -> bool:
    """True if the target lies no further, behind a step, than where this run has ended."""
    is_later = step.options.get("number", 0) > this.options.get("number", 0)
    return step.do in _WRITES or (step.do in _RUNS and not is_later)


def _trees(dsn: str) -> dict[str, list[int]]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute(_TREES, [list(SCHEMAS)]).fetchall())
