"""The definitions that a log has, by table: `Versions`, for as many tables as a source has."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_parallel_apply.pipeline.model.change import Relation


class Versions:
    """Definitions in the order in which the log has them. Not thread-safe."""

    def __init__(self, relations: Iterable[Relation] = ()) -> None:
        self._by_oid: dict[int, Relation] = {}
        self._by_name: dict[tuple[str, str], list[Relation]] = {}
        self.last_id = 0
        """The greatest id; 0 without a definition."""
        for relation in relations:
            self.add(relation)

    def add(self, relation: Relation) -> None:
        """The next one."""
        if relation.oid is not None:
            self._by_oid[relation.oid] = relation
        self._by_name.setdefault((relation.schema, relation.table), []).append(relation)
        self.last_id = max(self.last_id, relation.relation_id)

    def latest(self, schema: str, table: str, oid: int | None = None) -> Relation | None:
        """The last definition of a table: of that oid, or else of that name, unless it was taken from a table that is
        called otherwise since. One that was dropped and created again counts as the same: so it is at the target.
        """
        if oid is not None and oid in self._by_oid:
            return self._by_oid[oid]
        name = schema, table
        for relation in reversed(self._by_name.get(name, ())):
            last = relation if relation.oid is None else self._by_oid[relation.oid]
            if (last.schema, last.table) == name:
                return relation
        return None

    def all_latest(self) -> tuple[Relation, ...]:
        """The last definition of each table whose oid is known."""
        return tuple(self._by_oid.values())
