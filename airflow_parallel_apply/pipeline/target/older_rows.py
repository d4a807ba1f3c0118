"""Rows of an older definition as a newer one has them.

With ddl=skip, and where a run had stopped for it, somebody has brought a table to its newer definition before the
transaction that changed it at the source is applied. That one's rows of before the change then are no rows of the table
any more, and whoever changed the table could not reach them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import START_ANEW, PlanError
from airflow_parallel_apply.pipeline.model.change import Column, Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import line, values_of
from airflow_parallel_apply.pipeline.model.kept_texts import column_keeps_texts
from airflow_parallel_apply.pipeline.model.value_type import INTEGER_DIGITS, ValueKind
from airflow_parallel_apply.pipeline.target.redefinition import Redefinition, compare_definitions
from airflow_parallel_apply.pipeline.target.steps import Redefine, Remove, Replay, Step, Truncate

_NULL_LITERAL: Final = "NULL"
_TEXT: Final = re.compile(r"(?:text|character varying|varchar)(?:\((\d+)\))?")
_NUMBERS: Final = (ValueKind.INTEGER, ValueKind.DECIMAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """An older definition, and the columns of a newer one in it. `places`: of each its place there; None: it is not
    there. `fills`: the literals of those that are not there, as far as they are known. `letters`: as many as a text may
    have to be the same since; None: any number.
    """

    relation: Relation
    places: tuple[int | None, ...]
    fills: tuple[str | None, ...]
    letters: tuple[int | None, ...]

    def is_unknown(self, place: int) -> bool:
        """True if nothing tells what its rows have in a column of the newer definition."""
        return self.places[place] is None and self.fills[place] is None


def holds(newer: Column, older: Column) -> bool:
    """True if what a column held is the same now, but for texts that are too long: its type is, or was made wider."""
    after, before = newer.value, older.value
    if newer.has_type_of(older) or all(_TEXT.fullmatch(one.type_name) for one in (newer, older)):
        return True
    if not column_keeps_texts(older, newer):
        return False
    match before.kind, after.kind:
        case ValueKind.INTEGER, ValueKind.INTEGER:
            return after.size >= before.size
        case ValueKind.INTEGER, ValueKind.DECIMAL:
            return after.precision >= INTEGER_DIGITS[before.size]
        case _, ValueKind.DECIMAL:
            return after.precision >= before.precision
        case _:
            return True


def _is_wider(newer: Column, older: Column) -> bool:
    """The same of the same type, or a longer one of its kind, as of two integers."""
    is_kind_kept = newer.value.kind is older.value.kind and newer.value.kind in _NUMBERS
    are_texts = all(_TEXT.fullmatch(one.type_name) for one in (newer, older))
    return (newer.has_type_of(older) or is_kind_kept or are_texts) and holds(newer, older)


def origin_of(
    older: Relation,
    newer: Relation,
    between: Sequence[Relation] = (),
    *,
    holds: Callable[[Column, Column], bool] = holds,
) -> Origin:
    """Values of a column are in an older definition where it is surely the same, and of a type that holds no others, as
    is that of each definition `between`, the oldest first. `holds`: of a newer column and an older one.
    """
    if older.relation_id == newer.relation_id:
        width = len(newer.columns)
        return Origin(relation=older, places=tuple(range(width)), fills=(None,) * width, letters=(None,) * width)
    found = compare_definitions(older, newer)
    # By names: the columns of a change may have numbers that the definitions do not tell.
    renamed = {change.new.name: change.old for change in found.changes if change.new is not None}
    names = [column.name for column in older.columns]
    places: list[int | None] = []
    fills: list[str | None] = []
    letters: list[int | None] = []
    for column in newer.columns:
        before = renamed[column.name] if column.name in renamed else _of_name(older, column, found)
        since = [
            *(one for middle in between for one in middle.columns if one.number == column.number is not None),
            column,
        ]
        is_there = before is not None and all(holds(one, before) for one in since)
        places.append(names.index(before.name) if is_there and before is not None else None)
        fills.append(_fill(since, holds) if before is None and column.name in renamed else None)
        letters.append(None if before is None else _letters(before, since))
    return Origin(relation=older, places=tuple(places), fills=tuple(fills), letters=tuple(letters))


def fill_text(literal: str | None) -> str | None:
    """The value of a literal as `quote_literal` writes it."""
    if literal in (None, _NULL_LITERAL):
        return None
    if literal.startswith("E'"):
        return literal[2:-1].replace("''", "'").replace("\\\\", "\\")
    return literal[1:-1].replace("''", "'") if literal.startswith("'") else literal


def under_skipped(
    steps: Sequence[Step],
    relations: Callable[[int], Relation],
    *,
    is_seen: Callable[[Redefine], bool] | None = None,
    takes_older: Callable[[Relation, Relation], bool] | None = None,
    way_on: Callable[[Relation], str] | None = None,
) -> tuple[Step, ...]:
    """The steps of a unit whose rows, and truncates, are those of the definitions that somebody else has brought tables
    to: with ddl=skip, and where the table shows it (`is_seen`). `takes_older`: whether a table takes rows of an older
    definition as they are, before the newer one; without it, none does. `way_on`: the hint where nothing tells what a
    row has in a column, of a target that copies a table anew. Errors of the rows: `PlanError` there.
    """
    newer = [
        relations(step.newer_id)
        for step in steps
        if isinstance(step, Redefine) and (step.ddl is DdlPolicy.SKIP or (is_seen is not None and is_seen(step)))
    ]
    restating = _Restating(newer, relations, takes_older, way_on)
    return tuple(restating.step(step) for step in steps) if newer else tuple(steps)


class _Restating:
    """Restates rows under the last of `newer` that is their table's."""

    def __init__(
        self,
        newer: Sequence[Relation],
        relations: Callable[[int], Relation],
        takes_older: Callable[[Relation, Relation], bool] | None,
        way_on: Callable[[Relation], str] | None,
    ) -> None:
        self._newer = newer
        self._relations = relations
        self._takes_older = takes_older
        self._way_on = way_on
        self._forms: dict[int, _Form | None] = {}

    def step(self, step: Step) -> Step:
        match step:
            case Replay(rows):
                return replace(step, rows=partial(self._restated, rows))
            case Truncate():
                forms = {number: self._form(number) for number in step.relation_ids}
                ids = (number if form is None else form.newer.relation_id for number, form in forms.items())
                return replace(step, relation_ids=tuple(ids))
            case Remove(rows=rows) if form := self._form(rows.relation_id):
                return replace(step, rows=replace(rows, relation_id=form.newer.relation_id))
            case _:
                return step

    def _restated(self, rows: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        for batch in rows():
            ids = batch.column("relation_id").to_pylist()
            yield self._of_newer(batch, ids) if any(self._form(number) for number in set(ids)) else batch

    def _of_newer(self, batch: pa.RecordBatch, ids: Sequence[int]) -> pa.RecordBatch:
        made = []
        restated = ("values", "unsent", "old_key")
        listed = zip(ids, *(batch.column(name).to_pylist() for name in ("seqno", "operation", *restated)), strict=True)
        for number, seqno, operation, *texts in listed:
            form = self._form(number)
            if form is None:
                made.append((number, *texts))
            else:
                made.append((form.newer.relation_id, *form.of(seqno, Operation(operation), *texts)))
        for name, column in zip(("relation_id", *restated), zip(*made, strict=True), strict=True):
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(place), pa.array(column, batch.schema.field(place).type))
        return batch

    def _form(self, relation_id: int) -> _Form | None:
        """None where rows stay as they are."""
        if relation_id not in self._forms:
            self._forms[relation_id] = self._new_form(relation_id)
        return self._forms[relation_id]

    def _new_form(self, relation_id: int) -> _Form | None:
        if relation_id < 0:
            return None
        older = self._relations(relation_id)
        own = [one for one in self._newer if one.relation_id > relation_id and _is_same_table(older, one)]
        if not own:
            return None
        newer = own[-1]
        if self._takes_older is not None and self._takes_older(older, newer):
            return None
        # What a person skips may have had a USING.
        origin = origin_of(older, newer, own[:-1], holds=_is_wider)
        is_plain = origin.places == tuple(range(len(older.columns))) and older.name == newer.name
        is_plain = is_plain and not any(origin.letters)
        if is_plain and [one.name for one in older.columns] == [one.name for one in newer.columns]:
            return None
        return _Form(newer=newer, origin=origin, way_on=START_ANEW if self._way_on is None else self._way_on(newer))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """The way of one definition's rows into a newer one."""

    newer: Relation
    origin: Origin
    way_on: str

    def of(
        self, seqno: int, operation: Operation, values: str, unsent: str | None, old_key: str | None
    ) -> tuple[str, str | None, str | None]:
        """A row's values, its bitmap, and the key that it left; of a multiset, the old row. Errors: `PlanError`."""
        older, places = self.origin.relation, self.origin.places
        is_whole = older.by_image or operation not in (Operation.DELETE, Operation.KEY_LEFT)
        if [places[at] for at in self.newer.key_indexes] != list(older.key_indexes):
            raise self._untold(seqno, "by which column they are found", None)
        for place, column in enumerate(self.newer.columns):
            if is_whole and self.origin.is_unknown(place):
                raise self._untold(seqno, f"what they have in {column.name}", column.name)
        marks = unsent and "".join("0" if at is None else unsent[at] for at in places)
        left = self._row(seqno, old_key) if older.by_image and old_key is not None else old_key
        return self._row(seqno, values), marks, left

    def _row(self, seqno: int, values: str) -> str:
        texts = values_of(values) if self.origin.relation.columns else []
        pairs = zip(self.origin.places, self.origin.fills, strict=True)
        found = [fill_text(fill) if at is None else texts[at] for at, fill in pairs]
        for column, text, most in zip(self.newer.columns, found, self.origin.letters, strict=True):
            if text is not None and most is not None and len(text) > most:
                raise self._untold(seqno, f"what they have in {column.name}", column.name)
        return line(found)

    def _untold(self, seqno: int, what: str, column: str | None) -> PlanError:
        return PlanError(
            f"the transaction that changed {self.newer.name} at the source wrote rows of it before that, and nothing "
            f"tells {what} since",
            op="apply",
            table=self.newer.name,
            column=column,
            seqno=seqno,
            hint=f"No change of the target's table by hand reaches these rows. {self.way_on}",
        )


def _is_same_table(older: Relation, newer: Relation) -> bool:
    return older.oid == newer.oid if older.oid is not None else older.name == newer.name


def _of_name(older: Relation, column: Column, found: Redefinition) -> Column | None:
    """The same column, which has not changed."""
    uncertain = {one.name for one in (*found.uncertain, *found.unclear, *found.uncomputed)}
    same = [one for one in older.columns if one.name == column.name and one.type_name == column.type_name]
    return same[0] if same and column.name not in uncertain else None


def _fill(since: Sequence[Column], holds: Callable[[Column, Column], bool]) -> str | None:
    """The literal of a column that rows are older than: only the definition that brought it says it."""
    first = since[0]
    most = min((most for most in map(_most_letters, since) if most is not None), default=None)
    is_kept = all(holds(one, first) for one in since)
    is_kept = is_kept and (most is None or len(fill_text(first.fill) or "") <= most)
    return first.fill if is_kept else None


def _letters(before: Column, since: Sequence[Column]) -> int | None:
    """The number of letters that texts may have to be the same in each type since; None where none had more before."""
    had, *takes = (_most_letters(one) for one in (before, *since))
    most = min((one for one in takes if one is not None), default=None)
    return most if most is not None and (had is None or had > most) else None


def _most_letters(column: Column) -> int | None:
    found = _TEXT.fullmatch(column.type_name)
    return int(found[1]) if found is not None and found[1] else None
