"""Tables through their definitions: which files have the rows of which table, and by what its rows are told apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.older_rows import Origin, origin_of


class Identity(Enum):
    """By what a table's rows are told apart."""

    KEY = "key"
    IMAGE = "image"
    """By all their values: equal rows are counted."""
    NONE = "none"
    """By nothing: rows are only inserted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Definitions, one behind the other, under which rows are told apart alike. `key`: places in the newest one."""

    identity: Identity
    key: tuple[int, ...]
    origins: Mapping[int, Origin]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One table. `stages`: in their order; each begins with the rows that the one before it leaves."""

    newest: Relation
    stages: tuple[Stage, ...]

    def stage_of(self, relation_id: int) -> int | None:
        """The number of the stage of a definition; None: it is another table's."""
        return next((place for place, stage in enumerate(self.stages) if relation_id in stage.origins), None)

    def required(self, number: int) -> Collection[int]:
        """The places of the columns that a stage has to tell of every row: those by which the next one tells rows
        apart, or all.
        """
        following = self.stages[number + 1 : number + 2]
        if following and following[0].identity is not Identity.IMAGE:
            return following[0].key
        return range(len(self.newest.columns))


def lineages(relations: Iterable[Relation], files: Iterable[DataFile]) -> tuple[list[Lineage], tuple[str, ...]]:
    """The tables that have files, by their names; and, for people, those whose name another one has taken over.

    A table is known by its number at the source; in older logs by its name. Its name is the last one that the log has,
    also if no row came under it: the log learns that a table was renamed before another one's rows take over the name.
    So of two tables that have one name the former was dropped. Errors: `EncodeError` where a key is gone.
    """
    used = {file.relation_id for file in files}
    by_table: dict[int | str, list[Relation]] = {}
    for relation in sorted(relations, key=lambda one: one.relation_id):
        by_table.setdefault(relation.name if relation.oid is None else relation.oid, []).append(relation)
    by_name: dict[str, tuple[list[Relation], list[Relation]]] = {}
    replaced = []
    for definitions in sorted(by_table.values(), key=lambda found: found[-1].relation_id):
        versions = [relation for relation in definitions if relation.relation_id in used]
        if not versions:
            continue
        last = definitions[-1]
        if last.name in by_name:
            replaced.append(f"{last.name}, as definition {by_name[last.name][0][-1].relation_id} had it")
        newest = replace(versions[-1], schema=last.schema, table=last.table)
        by_name[last.name] = [*versions[:-1], newest], definitions
    return [_lineage(*found) for _, found in sorted(by_name.items())], tuple(replaced)


def _lineage(versions: Sequence[Relation], definitions: Sequence[Relation]) -> Lineage:
    """`versions`: those definitions that have files."""
    newest = versions[-1]
    stages: list[tuple[Identity, tuple[int, ...], dict[int, Origin]]] = []
    for relation in versions:
        between = [one for one in definitions if relation.relation_id < one.relation_id < newest.relation_id]
        origin = origin_of(relation, newest, between)
        identity, key = _identity(relation, origin)
        if not stages or stages[-1][:2] != (identity, key):
            stages.append((identity, key, {}))
        stages[-1][2][relation.relation_id] = origin
    return Lineage(
        newest=newest,
        stages=tuple(Stage(identity=identity, key=key, origins=origins) for identity, key, origins in stages),
    )


def _identity(relation: Relation, origin: Origin) -> tuple[Identity, tuple[int, ...]]:
    if relation.by_image:
        return Identity.IMAGE, ()
    if not relation.key_indexes:
        return Identity.NONE, ()
    try:
        return Identity.KEY, tuple(origin.places.index(place) for place in relation.key_indexes)
    except ValueError:
        raise EncodeError(
            f"definition {relation.relation_id} of {relation.name} has a key whose columns are gone, or others, since",
            op="compact",
            table=relation.name,
            hint="Its rows cannot be told apart any more. Exclude the table, or feed another directory from its start.",
        ) from None
