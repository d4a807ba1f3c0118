"""The tables that one read of a slot has described, by oid, under the names that they have by now: `DescribedTables`.

The server describes a partitioned table with the first row of each of its partitions, and not again where the table
itself gets another name: a rename invalidates what the server keeps of the root, not of its partitions. So a name that
becomes known otherwise (by a swap's other table, or by a message of our own) holds for what was described before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import WireRelation, parse_relation, parse_type
from airflow_parallel_apply.pipeline.source.postgres.wire.tuples import FollowedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """A described table as the log has it. `is_redefined`: the log had another definition. `renamed`: definitions of
    other tables, whose new names came along.
    """

    table: FollowedTable
    is_redefined: bool = False
    renamed: tuple[Relation, ...] = ()


LookUp = Callable[[WireRelation, int], LookedUp]
"""Looks a description up in catalog and log. The number is the LSN at which the transaction that it is in commits."""


class DescribedTables:
    """The tables that one read has described. Not thread-safe."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._types: dict[int, str] = {}
        self._tables: dict[int, FollowedTable] = {}
        self._kept: dict[int, bytes] = {}
        self._names: dict[int, tuple[str, str]] = {}
        """The new names of kept tables that were renamed since."""

    @property
    def now(self) -> dict[int, FollowedTable]:
        """All that were looked up, as they are now; a copy."""
        return dict(self._tables)

    @property
    def kept(self) -> Collection[int]:
        """The oids of those that no change has needed yet."""
        return self._kept.keys()

    def keep(self, message: bytes) -> WireRelation | None:
        """Take a description of a type, or of a table that is looked up only when a change needs it."""
        if message[:1] == b"Y":
            self.name_type(message)
            return None
        relation = self.parse(message)
        self._kept[relation.oid] = message
        return relation

    def name_type(self, message: bytes) -> None:
        """Know a type by its name."""
        oid, name = parse_type(message)
        self._types[oid] = name

    def parse(self, message: bytes) -> WireRelation:
        """Return a description of a table; it is not looked up."""
        return parse_relation(message, self._types)

    def forget_kept(self, oid: int) -> None:
        """It is described anew: what was kept is of the past."""
        self._kept.pop(oid, None)
        self._names.pop(oid, None)

    def look_up_kept(self, oid: int, commit_lsn: int) -> bool:
        """Look a kept description up, which is still true but for the table's name. Returns whether the log had another
        definition.
        """
        relation = self.parse(self._kept.pop(oid))
        if name := self._names.pop(oid, None):
            relation = replace(relation, schema=name[0], table=name[1])
        return self.look_up(relation, commit_lsn)[0]

    def look_up(self, relation: WireRelation, commit_lsn: int) -> tuple[bool, dict[int, FollowedTable]]:
        """Return whether the log had another definition, and all tables that are others from here on."""
        found = self._look_up(relation, commit_lsn)
        self._tables[relation.oid] = found.table
        return found.is_redefined, {relation.oid: found.table, **self.rename(found.renamed)}

    def rename(self, relations: Iterable[Relation]) -> dict[int, FollowedTable]:
        """Give tables the definitions under their new names; return those that were looked up, and are others now."""
        others: dict[int, FollowedTable] = {}
        for relation in relations:
            oid = relation.oid
            if oid in self._kept:
                self._names[oid] = relation.schema, relation.table
            if oid in self._tables:
                others[oid] = self._tables[oid] = replace(self._tables[oid], relation=relation)
        return others

    def id_of(self, oid: int) -> int:
        """Return a table's id in the log. Errors: `SourceError` for one that the server has not described."""
        found = self._tables.get(oid)
        if found is None:
            raise undescribed(oid)
        return found.relation.relation_id


def undescribed(oid: int) -> SourceError:
    """Return the error of a change whose table the server has not described."""
    return SourceError(f"pgoutput sent a change of relation {oid} without describing it", op="capture")
