"""Types and expressions that columns had for a while, and that no row shows to the target: `known_before`.

Definitions come into the log with rows, and the target goes from one to the next. A column that was cast to another
type and on, or back, without a row in between has values that its first and last type do not show: digits were cut off,
a JSON text was read and printed. The same holds for a column whose expression changed before it became an ordinary
column. The source's event trigger reports each step, and the log keeps what the last look at the catalog found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.kept_texts import keeps_texts
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import Shape
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.truncations import descriptions
from airflow_parallel_apply.postgres.generated_text import is_virtual, type_of

_BOTH_ENDS: Final = 2
_TEXT: Final = re.compile(r"text|character varying(\(\d+\))?")
Texts = tuple[str, ...]
"""A column's types, or its expressions, one after the other."""


@dataclass(slots=True)
class Known:
    """A table's columns, by number: what the log's last definition has of them, and behind it what was seen last.
    `type_numbers`: of the definition's types, as in `Column`. `is_told`: the source tells of each change since.
    `rewritten`: as in `Sighting`, at that moment. `since`: rows that were written at or behind it are still to come
    into the log.
    """

    types: dict[int, Texts] = field(default_factory=dict)
    type_numbers: dict[int, int] = field(default_factory=dict)
    computed: dict[int, Texts] = field(default_factory=dict)
    is_told: bool = False
    rewritten: tuple[tuple[int, int], ...] | None = None
    since: Offset = 0

    def has_pending(self, numbers: Iterable[int]) -> bool:
        """True if one of these columns was seen otherwise than the log's last definition has it."""
        return any(len(found.get(number, ())) > 1 for found in (self.types, self.computed) for number in numbers)

    def stored(self) -> frozenset[int]:
        """The computed columns whose values another type casts."""
        return frozenset(number for number, texts in self.computed.items() if not is_virtual(texts[-1]))


def known_before(log: LogState) -> Mapping[int, Known]:
    """By the oids of the tables."""
    found: dict[int, Known] = {}
    for relation in log.relations:
        if relation.oid is not None:
            found[relation.oid] = _defined(relation)
    copied = {one.oid: one.below_offset for one in log.passed_over}
    for oid, known in found.items():
        known.since = max(log.captured_offset, copied.get(oid, 0))
    for sighting in {one.oid: one for one in log.sightings}.values():
        known = found.setdefault(sighting.oid, Known())
        known.is_told = bool(sighting.names)
        if any(one.oid == sighting.oid and one.below_offset > sighting.offset for one in log.passed_over):
            # The table was copied since.
            continue
        known.rewritten = sighting.rewritten
        _add(known.computed, dict(sighting.expressions))
        if known.is_told or not known.types:
            # Else the log's definition may be the later one.
            _add(known.types, dict(sighting.types))
    return found


def passed_types(
    known: Known,
    shapes: Iterable[Shape],
    now: Mapping[int, str],
    *,
    is_renamed: Callable[[str, str], bool],
    versions: Mapping[int, int],
    computed: Mapping[int, str] = {},
    of_renamed_types: Collection[int] = (),
) -> Mapping[int, Texts]:
    """The types of those columns of a table that had one in between which may have changed values. `shapes`: what the
    source told of it since. `now`: the columns that are asked for, with their types. `computed`: those whose values a
    USING that was sent may have computed, with the type that this gave them: the types before it, unless all are
    texts, may give the expression another meaning. `versions`: those of the columns' entries in the catalog before the
    first shape, as far as they are known. `is_renamed` and `of_renamed_types`: see `History`.
    """
    found = {number: known.types.get(number, ()) for number in now}
    files = known.rewritten if known.is_told else None
    entries = dict(versions)
    for shape in shapes:
        types = {number: shape.columns[number].type_name for number in now if number in shape.columns}
        for number, type_name in types.items():
            before = found[number][-1:]
            version = shape.columns[number].version
            is_unaltered = shape.rewritten == files or (version and version == entries.get(number))
            if is_unaltered and before not in ((), (type_name,)) and is_renamed(before[0], type_name):
                found[number] = found[number][:-1]
        _add(found, types)
        files = shape.rewritten
        entries.update((number, shape.columns[number].version) for number in types)
    for number in found.keys() & {*of_renamed_types}:
        found[number] = found[number][:-1]
    _add(found, now)
    lossy = {number: types for number, types in found.items() if _may_have_lost(types)}
    read = {number: _up_to(type_name, found[number]) for number, type_name in computed.items() if number in found}
    return {number: types for number, types in read.items() if _may_mean_other(types)} | lossy


def remade_types(known: Known, now: Mapping[int, tuple[str, int]]) -> Mapping[int, Texts]:
    """Those of these columns, with the names and numbers of their types, whose type is another one than the log's last
    definition has, and has the name of that: a domain that was made anew may be of any other base.
    """
    return {
        number: (type_name, f"another {type_name}")
        for number, (type_name, type_number) in now.items()
        if known.types.get(number, ())[:1] == (type_name,)
        and known.type_numbers.get(number, type_number) != type_number
    }


def written_types(pending: Pending, oid: int, known: Known) -> Sequence[Mapping[str, str]]:
    """The types of a table's columns, by their names, in each definition that rows which are still to be captured bring
    into the log, in order. Errors: psycopg's own.
    """
    described = [one.columns for lsn, one in descriptions(pending) if one.oid == oid and lsn >= known.since]
    query = "SELECT pg_catalog.format_type(%s::oid, %s)"
    names: dict[tuple[int, int], str] = {}
    for wanted in {(column.type_oid, column.type_modifier) for columns in described for column in columns}:
        ((names[wanted],),) = pending.connection.execute(query, wanted).fetchall()
    return [{column.name: names[column.type_oid, column.type_modifier] for column in columns} for columns in described]


def is_way(types: Texts, steps: Iterable[str]) -> bool:
    """True if these steps lead from the first type to all others, in their order and by no other one."""
    reached = [types[0]]
    for step in steps:
        if step != reached[-1]:
            reached.append(step)
    return tuple(reached) == types


def passed_expressions(
    known: Known, shapes: Iterable[Shape], numbers: Iterable[int], *, unseen: Collection[int]
) -> Mapping[int, Texts]:
    """The expressions of those columns of a table that are computed no more, and may have been computed otherwise than
    the log says before that. The table is rewritten for it; where it is not, a name in the expression was changed.
    `unseen`: those that may have got other expressions of which nothing was told.
    """
    found = {number: known.computed[number] for number in numbers if number in known.computed}
    rewritten = known.rewritten
    for shape in shapes:
        columns = {number: shape.columns[number].definition for number in found if number in shape.columns}
        for number, definition in columns.items():
            if definition and shape.rewritten == rewritten:
                found[number] = (*found[number][:-1], definition)
            elif definition:
                _add(found, {number: definition})
        rewritten = shape.rewritten
    return {number: texts for number, texts in found.items() if number in unseen or len(texts) > 1}


def is_seen(known: Known, shapes: Iterable[Shape], number: int) -> bool:
    """True if the source told that a column is computed no more, and since what it had told before, the table was not
    rewritten: that needs no rewrite.
    """
    rewritten = known.rewritten
    for shape in shapes if known.is_told else ():
        column = shape.columns.get(number)
        if column is not None and not column.generated:
            return shape.rewritten == rewritten
        rewritten = shape.rewritten
    return False


def _defined(relation: Relation) -> Known:
    known, expressions = Known(), dict(relation.expressions)
    for column in relation.columns:
        if column.number is not None:
            known.types[column.number] = (column.type_name,)
            if column.type_number is not None:
                known.type_numbers[column.number] = column.type_number
            if column.generated and column.name in expressions:
                known.computed[column.number] = (expressions[column.name],)
    for number, name in zip(relation.computed_numbers or (), relation.computed or (), strict=False):
        if name in expressions:
            known.computed[number] = (expressions[name],)
            known.types[number] = (type_of(expressions[name]),)
    return known


def _add(found: dict[int, Texts], texts: Mapping[int, str]) -> None:
    for number, text in texts.items():
        known = found.get(number, ())
        found[number] = known if known[-1:] == (text,) else (*known, text)


def _may_have_lost(types: Sequence[str]) -> bool:
    """True if a cast from the first type to the last may make other texts than one from each to the next."""
    return len(types) > _BOTH_ENDS and not all(keeps_texts(one, other) for one, other in pairwise(types[:-1]))


def _up_to(type_name: str, types: Texts) -> Texts:
    """As far as the last time that a column had this type."""
    at = max((place for place, one in enumerate(types) if one == type_name), default=len(types) - 1)
    return types[: at + 1]


def _may_mean_other(types: Texts) -> bool:
    """True if an expression that gives the last type may have read another one than the first."""
    return len(types) > _BOTH_ENDS and not all(_TEXT.fullmatch(one) for one in types[:-1])
