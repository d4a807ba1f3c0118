"""Tables through their definitions: which files have the rows of which table, and by what its rows are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.target.redefinition import Redefinition, compare_definitions


class Identity(Enum):
    """By what a table's rows are told apart."""

    KEY = "key"
    IMAGE = "image"
    """By all their values: equal rows are counted."""
    NONE = "none"
    """By nothing: rows are only inserted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An older definition, and the columns of the newest one in it. `places`: of each its place there; None: it is
    not there. `fills`: the literals of those that are not there, as far as they are known.
    """

    relation: Relation
    places: tuple[int | None, ...]
    fills: tuple[str | None, ...]


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


def lineages(relations: Iterable[Relation], files: Iterable[DataFile]) -> tuple[list[Lineage], tuple[str, ...]]:
    """The tables that have files, by their names; and, for people, those whose name another one has taken over.

    A table is known by its number at the source; in older logs by its name. Errors: `EncodeError` where a key is gone.
    """
    used = {file.relation_id for file in files}
    by_table: dict[int | str, list[Relation]] = {}
    for relation in sorted(relations, key=lambda one: one.relation_id):
        if relation.relation_id in used:
            by_table.setdefault(relation.name if relation.oid is None else relation.oid, []).append(relation)
    by_name: dict[str, list[Relation]] = {}
    replaced = []
    for versions in sorted(by_table.values(), key=lambda found: found[-1].relation_id):
        name = versions[-1].name
        if name in by_name:
            replaced.append(f"{name}, as definition {by_name[name][-1].relation_id} had it")
        by_name[name] = versions
    return [_lineage(versions) for _, versions in sorted(by_name.items())], tuple(replaced)


def _lineage(versions: Sequence[Relation]) -> Lineage:
    newest = versions[-1]
    stages: list[tuple[Identity, tuple[int, ...], dict[int, Origin]]] = []
    for relation in versions:
        origin = _origin(relation, newest)
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


def _origin(older: Relation, newest: Relation) -> Origin:
    """Values of a column are in an older definition where it is surely the same, and of a type that holds no others."""
    if older.relation_id == newest.relation_id:
        width = len(newest.columns)
        return Origin(relation=older, places=tuple(range(width)), fills=(None,) * width)
    found = compare_definitions(older, newest)
    renamed = {change.new: change.old for change in found.changes if change.new is not None}
    places: list[int | None] = []
    fills: list[str | None] = []
    for column in newest.columns:
        before = renamed[column] if column in renamed else _of_name(older, column, found)
        is_there = before is not None and _holds(column, before)
        places.append(older.columns.index(before) if is_there and before is not None else None)
        fills.append(column.fill if before is None and column in renamed else None)
    return Origin(relation=older, places=tuple(places), fills=tuple(fills))


def _of_name(older: Relation, column: Column, found: Redefinition) -> Column | None:
    """The same column, which has not changed."""
    uncertain = {one.name for one in (*found.uncertain, *found.unclear, *found.uncomputed)}
    same = [one for one in older.columns if one.name == column.name and one.type_name == column.type_name]
    return same[0] if same and column.name not in uncertain else None


def _holds(newer: Column, older: Column) -> bool:
    """True if what a column held is the same now: its type is, or was made wider."""
    if newer.type_name == older.type_name:
        return True
    after, before = newer.value, older.value
    if after.kind is not before.kind:
        return False
    match after.kind.value:
        case "integer":
            return after.size >= before.size
        case "decimal":
            return after.scale == before.scale and after.precision >= before.precision
        case "text":
            texts = ("text", "character varying", "varchar")
            return all(one.type_name.startswith(texts) for one in (newer, older))
        case _:
            return False
