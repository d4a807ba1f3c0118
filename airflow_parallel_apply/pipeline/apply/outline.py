"""Outlines a serial unit in one pass over the narrow columns of its rows: where a set of them has to end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.change import Mark, Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.model.gone_rows import REMOVAL_PREFIX, GoneRows
from airflow_parallel_apply.pipeline.target.redefinition import dropped_computed
from airflow_parallel_apply.pipeline.versions import Versions

MAX_SETS: Final = 16
"""More sets than this are cheaper to replay than to stage one by one."""

Place: TypeAlias = tuple[int, int]
"""(seqno, fragno)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A place where a set of rows ends: a statement, a change that only a replay gets right, or, without an operation,
    the first row under a newer definition.
    """

    seqno: int
    fragno: int
    operation: Operation | None
    relation_id: int
    values: tuple[str, ...] = ()
    """A statement's options or text."""
    is_first: bool = False
    """True if no row under the newer definition can have been applied before it."""
    is_emptied: bool = False
    """True if the first row under the newer definition empties the table."""

    @property
    def place(self) -> Place:
        return self.seqno, self.fragno

    @property
    def is_ddl(self) -> bool:
        """True if it is a statement to run. A message about a relation only makes a place for its new definition."""
        return self.operation is Operation.MESSAGE and self.relation_id < 0 and self.gone_rows is None

    @property
    def gone_rows(self) -> GoneRows | None:
        """The rows that a message tells to be gone."""
        is_removal = self.operation is Operation.MESSAGE and self.values[:1] == (REMOVAL_PREFIX,)
        return GoneRows.from_text(self.values[1]) if is_removal else None

    def is_truncated_with(self, before: Break) -> bool:
        """True if both belong to one TRUNCATE of several tables, which comes as adjacent rows with equal options."""
        return (
            before.operation is Operation.TRUNCATE
            and self.operation is Operation.TRUNCATE
            and self.place == (before.seqno, before.fragno + 1)
            and self.values == before.values
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The result of one pass over the narrow columns of a unit. `last`: the place of its last row, or before any."""

    breaks: tuple[Break, ...]
    last: Place
    row_count: int
    tables_redefined: bool


def outline_of(unit: Unit, log: RowReader) -> Outline:
    """Outline one transaction of any size, or several small ones. Errors: `LogError`."""
    breaks: list[Break] = []
    last_fragno, row_count = -1, 0
    relations: set[int] = set()
    columns = ["seqno", "fragno", "operation", "relation_id", "unsent"]
    for batch in log.rows(unit.after_seqno, unit.last_seqno, columns=columns):
        if not batch.num_rows:
            continue
        row_count += batch.num_rows
        in_last = batch.column("fragno").filter(pc.equal(batch.column("seqno"), unit.last_seqno))
        last_fragno = max(last_fragno, pc.max(in_last).as_py() if len(in_last) else -1)
        relations.update(pc.unique(batch.column("relation_id")).to_pylist())
        operation = batch.column("operation")
        unsent_key = pc.and_(pc.equal(operation, Operation.KEY_ARRIVED), pc.is_valid(batch.column("unsent")))
        statement = pc.is_in(operation, pa.array([Operation.TRUNCATE, Operation.MESSAGE]))
        # More of these than sets are worth are all replayed, wherever they lie: they need not be kept (law 6).
        unsent_rows = batch.filter(unsent_key).slice(0, MAX_SETS + 1)
        marked = pa.Table.from_batches([batch.filter(statement), *([unsent_rows] if len(breaks) <= MAX_SETS else [])])
        for row in marked.to_pylist():
            breaks.append(
                Break(
                    seqno=row["seqno"],
                    fragno=row["fragno"],
                    operation=Operation(row["operation"]),
                    relation_id=row["relation_id"],
                )
            )
    state = log.state()
    tables = [state.relation(number).name for number in relations if number >= 0]
    breaks = list(_with_values(breaks, log))
    if marked := _redefining(unit, log):
        statements = {found.place: found for found in breaks}
        redefined = (found for found in _redefinitions(relations, unit, log) if found.seqno in marked)
        breaks += [_before_truncate(found, statements, log) for found in redefined]
    return Outline(
        # A definition is needed for the statement in the same place.
        breaks=tuple(sorted(breaks, key=lambda found: (found.place, found.operation is not None))),
        last=(unit.last_seqno, last_fragno),
        row_count=row_count,
        tables_redefined=len(tables) != len(set(tables)),
    )


def older_version(relation: Relation, log: RowReader) -> Relation:
    """The version before, or this one where it is the first."""
    return _older_versions([relation.relation_id], log)[relation.relation_id]


def _older_versions(numbers: Iterable[int], log: RowReader) -> dict[int, Relation]:
    """By the id of each version the one before it, or itself where it is the first."""
    wanted, versions, older = set(numbers), Versions(), {}
    for relation in log.state().relations:
        if relation.relation_id in wanted:
            found = versions.latest(relation.schema, relation.table, relation.oid)
            older[relation.relation_id] = found or relation
        versions.add(relation)
    return older


def _redefining(unit: Unit, log: RowReader) -> set[int]:
    """The transactions in which rows under a newer definition begin."""
    found = log.transactions(unit.after_seqno, unit.last_seqno)
    seqnos, marks = found.column("seqno").to_pylist(), found.column("marks").to_pylist()
    return {seqno for seqno, marked in zip(seqnos, marks, strict=True) if marked and Mark.RELATION in marked}


def _redefinitions(relations: Iterable[int], unit: Unit, log: RowReader) -> Iterator[Break]:
    """The first row of each relation whose name or columns are others than those of the version before, computed ones
    included. Where the log tells which row that is, one further on is none: another table's redefinition marked its
    transaction.
    """
    state = log.state()
    older = _older_versions(relations, log)
    newer = {number for number, before in older.items() if _is_redefined(before, state.relation(number))}
    first: dict[int, Place] = {}
    columns = ["seqno", "fragno", "relation_id"]
    for batch in log.rows(unit.after_seqno, unit.last_seqno, columns=columns) if newer else ():
        for number in newer.intersection(pc.unique(batch.column("relation_id")).to_pylist()):
            rows = batch.filter(pc.equal(batch.column("relation_id"), number))
            seqno = pc.min(rows.column("seqno")).as_py()
            fragno = pc.min(rows.column("fragno").filter(pc.equal(rows.column("seqno"), seqno))).as_py()
            first[number] = min(first.get(number, (seqno, fragno)), (seqno, fragno))
    for number, (seqno, fragno) in first.items():
        began = state.relation(number).first_seqno
        if began in (None, seqno):
            yield Break(seqno=seqno, fragno=fragno, operation=None, relation_id=number, is_first=began is not None)


def _before_truncate(redefined: Break, statements: Mapping[Place, Break], log: RowReader) -> Break:
    """Move a redefinition before the TRUNCATE that its table is in: of tables that are truncated together, none may
    wait behind the first for its definition. A table that comes again is in another TRUNCATE.
    """
    here = statements.get(redefined.place)
    if here is None or here.operation is not Operation.TRUNCATE:
        return redefined
    adjacent = [here]
    while (before := statements.get((here.seqno, here.fragno - 1))) and here.is_truncated_with(before):
        adjacent.append(before)
        here = before
    state, tables = log.state(), set[object]()
    for one in reversed(adjacent):
        relation = state.relation(one.relation_id)
        table = relation.oid or relation.name
        if table in tables or not tables:
            here, tables = one, set()
        tables.add(table)
    return replace(redefined, fragno=here.fragno, is_emptied=True)


def _columns(relation: Relation) -> list[tuple[object, ...]]:
    """The parts of a definition whose change is a redefinition. A column without a number never equals a former one."""
    return [
        (column.name, column.type_name, column.number, column.generated, column.is_unclear and relation.relation_id)
        for column in relation.columns
    ]


def _is_redefined(old: Relation, new: Relation) -> bool:
    return _definition(old) != _definition(new) or bool(
        new.newly_computed(old) or new.recomputed(old) or dropped_computed(old, new)
    )


def _definition(relation: Relation) -> tuple[str, list[tuple[object, ...]]]:
    return relation.name, _columns(relation)


def _with_values(breaks: Sequence[Break], log: RowReader) -> tuple[Break, ...]:
    """Fetch the statements' options and texts, which lie in the wide column, for the few rows that have them."""
    wanted: dict[int, set[int]] = {}
    for found in breaks:
        if found.operation is not Operation.KEY_ARRIVED:
            wanted.setdefault(found.seqno, set()).add(found.fragno)
    texts: dict[Place, tuple[str, ...]] = {}
    for seqno, fragnos in wanted.items():
        for fragno in sorted(fragnos):
            if (seqno, fragno) in texts:
                continue
            for batch in log.rows(
                seqno - 1, seqno, columns=["fragno", "values"], in_order=True, after_fragno=fragno - 1
            ):
                near = batch.filter(pc.is_in(batch.column("fragno"), pa.array(sorted(fragnos), pa.int64())))
                texts.update(((seqno, row["fragno"]), _texts(row["values"])) for row in near.to_pylist())
                break
    return tuple(replace(found, values=texts.get(found.place, ())) for found in breaks)


def _texts(values: str) -> tuple[str, ...]:
    """The texts of a statement, which may have none."""
    return tuple(text for text in values_of(values) if text is not None) if values else ()
