"""A serial unit as a sequence of steps: rows in sets, statements between them.

Mostly it is one critical transaction. A large load behind a TRUNCATE stays set-based: the rows between two statements
are staged and merged like any unit. After DDL the target's tables are others than staging could know, so what follows
is replayed change by change; so is a transaction that is small, or that changes the definition of a table it writes,
or that has many unsent key changes, and so are several transactions, which dense fences made one unit.

Before the first row under a newer definition the target is brought to it, or the unit stops there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.epoch import Unit
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.event import Mark, Operation, Relation
from airflow_parallel_apply.pipeline.line import values_of
from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.target.protocol import SerialStep

_REPLAY_ROWS: Final = 500
"""Below this a Spark job costs more than it saves."""

_MAX_SETS: Final = 16
"""More sets than this are cheaper to replay than to stage one by one."""

_Place: TypeAlias = tuple[int, int]
"""(seqno, fragno)"""


@dataclass(frozen=True, slots=True)
class _Break:
    """A place where a set of rows ends: a statement, a change that only a replay gets right, or, without an operation,
    the first row under a newer definition.
    """

    seqno: int
    fragno: int
    operation: Operation | None
    relation_id: int
    values: tuple[str, ...]

    @property
    def place(self) -> _Place:
        return self.seqno, self.fragno


@dataclass(frozen=True, slots=True)
class _Outline:
    """What one pass over the narrow columns of a unit tells. `last`: the place of its last row, or before any."""

    breaks: tuple[_Break, ...]
    last: _Place
    row_count: int
    tables_redefined: bool


def serial_parts(unit: Unit, log: RowReader) -> tuple[Unit, ...]:
    """The unit in parts that are committed one after the other: a transaction with DDL ends one, since its text may
    change settings of the session, which is then closed.
    """
    if is_single(unit):
        return (unit,)
    transactions = log.transactions(unit.after_seqno, unit.last_seqno)
    marked = zip(transactions.column("seqno").to_pylist(), transactions.column("marks").to_pylist(), strict=True)
    ends = [seqno for seqno, marks in marked if Mark.MESSAGE in (marks or ())]
    return _cut(unit, ends)


def single_transactions(unit: Unit) -> tuple[Unit, ...]:
    """The unit as one part for each transaction: what is refused then is refused in its own place."""
    return _cut(unit, range(unit.after_seqno + 1, unit.last_seqno))


def serial_steps(
    unit: Unit, log: RowReader, stage: Stage, ddl: DdlPolicy, *, exactly: bool = False
) -> tuple[SerialStep, ...]:
    """Stage what is set-based and say what to run, in order. `exactly`: change by change, nothing as a set.

    Errors: `PlanError` for DDL that the pipeline refuses.
    """
    outline = _outline(unit, log)
    for found in outline.breaks:
        if found.operation is Operation.MESSAGE and ddl is DdlPolicy.REFUSE:
            raise PlanError(
                f"the source sent DDL, which this pipeline refuses: {found.values[1][:200]}",
                op="apply",
                pipeline=unit.pipeline,
                seqno=found.seqno,
                hint="Run the pipeline with ddl=apply, and the target will run this text; or run it there by hand and "
                "the pipeline with ddl=skip.",
            )
    statements = [found for found in outline.breaks if found.operation is not Operation.KEY_ARRIVED]
    in_sets = (
        not exactly
        and is_single(unit)
        and outline.row_count > _REPLAY_ROWS
        and len(outline.breaks) <= _MAX_SETS
        and not outline.tables_redefined
    )
    breaks = outline.breaks if in_sets else statements
    return tuple(_steps(unit, log, stage, breaks, outline.last, in_sets=in_sets, ddl=ddl))


def is_single(unit: Unit) -> bool:
    """Whether it is one transaction, which may be of any size."""
    return unit.last_seqno == unit.after_seqno + 1


def _cut(unit: Unit, ends: Iterable[int]) -> tuple[Unit, ...]:
    parts: list[Unit] = []
    after = unit.after_seqno
    for end in (*(end for end in ends if end < unit.last_seqno), unit.last_seqno):
        parts.append(replace(unit, after_seqno=after, last_seqno=end))
        after = end
    return tuple(parts)


def _steps(
    unit: Unit,
    log: RowReader,
    stage: Stage,
    breaks: Sequence[_Break],
    last: _Place,
    *,
    in_sets: bool,
    ddl: DdlPolicy,
) -> Iterator[SerialStep]:
    at: _Place = (unit.after_seqno + 1, 0)
    staging = in_sets
    for index, found in enumerate(breaks):
        # The half that leaves the old key lies just before the one that arrives; the replayed update does both.
        begins = found.fragno - 1 if found.operation is Operation.KEY_ARRIVED else found.fragno
        yield from _rows(unit, log, stage, at, (found.seqno, begins - 1), staging=staging)
        if found.operation is None:
            newest = log.state().relation(found.relation_id)
            yield SerialStep(redefined=(_older(newest, log).relation_id, newest.relation_id), ddl=ddl)
            at, staging = found.place, False
            continue
        at = (found.seqno, found.fragno + 1)
        match found.operation:
            case Operation.TRUNCATE:
                together = [other for other in breaks[index:] if other.operation is Operation.TRUNCATE]
                if index and _adjacent(breaks[index - 1], found):
                    continue
                yield _truncate(found, together)
            case Operation.MESSAGE if ddl is DdlPolicy.SKIP:
                continue
            case Operation.MESSAGE:
                yield SerialStep(statement=found.values[1])
                staging = False
            case _:
                yield from _rows(unit, log, stage, (found.seqno, begins), found.place, staging=False)
    yield from _rows(unit, log, stage, at, last, staging=staging)


def _truncate(first: _Break, candidates: Sequence[_Break]) -> SerialStep:
    """One TRUNCATE of several tables comes as adjacent rows with equal options."""
    together = [first]
    for found in candidates[1:]:
        if not _adjacent(together[-1], found):
            break
        together.append(found)
    return SerialStep(
        truncate=tuple(found.relation_id for found in together),
        restart_identity="restart_identity" in first.values,
    )


def _adjacent(one: _Break, other: _Break) -> bool:
    return (
        one.operation is Operation.TRUNCATE
        and other.operation is Operation.TRUNCATE
        and other.place == (one.seqno, one.fragno + 1)
        and other.values == one.values
    )


def _rows(
    unit: Unit, log: RowReader, stage: Stage, first: _Place, last: _Place, *, staging: bool
) -> Iterator[SerialStep]:
    if last < first:
        return
    if not staging:
        yield SerialStep(replay=_replay(log, first, last))
        return
    row_count = _count(log, unit.last_seqno, first[1], last[1])
    part = replace(unit, first_fragno=first[1], last_fragno=last[1], row_count=row_count)
    if part.row_count:
        yield SerialStep(staged=stage.stage(part))


def _replay(log: RowReader, first: _Place, last: _Place) -> Callable[[], Iterator[pa.RecordBatch]]:
    """Rows from one place to another, both inclusive."""
    after_fragno = first[1] - 1 if first[0] == last[0] else None

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in log.rows(first[0] - 1, last[0], in_order=True, after_fragno=after_fragno):
            seqno, fragno = batch.column("seqno"), batch.column("fragno")
            inside = batch.filter(
                pc.and_(
                    pc.or_(pc.greater(seqno, first[0]), pc.greater_equal(fragno, first[1])),
                    pc.or_(pc.less(seqno, last[0]), pc.less_equal(fragno, last[1])),
                )
            )
            if inside.num_rows:
                yield inside
            if batch.num_rows and (seqno[-1].as_py(), fragno[-1].as_py()) > last:
                return

    return rows


def _count(log: RowReader, seqno: int, first: int, last: int) -> int:
    return sum(
        int(
            pc.sum(pc.and_(pc.greater_equal(batch.column(0), first), pc.less_equal(batch.column(0), last))).as_py() or 0
        )
        for batch in log.rows(seqno - 1, seqno, columns=["fragno"])
    )


def _outline(unit: Unit, log: RowReader) -> _Outline:
    breaks: list[_Break] = []
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
        unsent_rows = batch.filter(unsent_key).slice(0, _MAX_SETS + 1)
        marked = pa.Table.from_batches([batch.filter(statement), *([unsent_rows] if len(breaks) <= _MAX_SETS else [])])
        for row in marked.to_pylist():
            breaks.append(_Break(row["seqno"], row["fragno"], Operation(row["operation"]), row["relation_id"], ()))
    state = log.state()
    tables = [state.relation(number).name for number in relations if number >= 0]
    breaks = list(_with_values(breaks, log))
    if _is_redefined(unit, log):
        statements = {found.place: found for found in breaks}
        breaks += [_before_truncate(found, statements) for found in _redefinitions(relations, unit, log)]
    return _Outline(
        # A definition is needed for the statement in the same place.
        breaks=tuple(sorted(breaks, key=lambda found: (found.place, found.operation is not None))),
        last=(unit.last_seqno, last_fragno),
        row_count=row_count,
        tables_redefined=len(tables) != len(set(tables)),
    )


def _is_redefined(unit: Unit, log: RowReader) -> bool:
    marks = log.transactions(unit.after_seqno, unit.last_seqno).column("marks").to_pylist()
    return any(Mark.RELATION in found for found in marks if found)


def _redefinitions(relations: Iterable[int], unit: Unit, log: RowReader) -> Iterator[_Break]:
    """The first row of each relation whose columns are others than those of the version before."""
    state = log.state()
    newer = {
        number
        for number in relations
        if number >= 0 and _columns(_older(state.relation(number), log)) != _columns(state.relation(number))
    }
    first: dict[int, _Place] = {}
    columns = ["seqno", "fragno", "relation_id"]
    for batch in log.rows(unit.after_seqno, unit.last_seqno, columns=columns) if newer else ():
        for number in newer.intersection(pc.unique(batch.column("relation_id")).to_pylist()):
            rows = batch.filter(pc.equal(batch.column("relation_id"), number))
            seqno = pc.min(rows.column("seqno")).as_py()
            fragno = pc.min(rows.column("fragno").filter(pc.equal(rows.column("seqno"), seqno))).as_py()
            first[number] = min(first.get(number, (seqno, fragno)), (seqno, fragno))
    for number, (seqno, fragno) in first.items():
        yield _Break(seqno, fragno, None, number, ())


def _before_truncate(redefined: _Break, statements: Mapping[_Place, _Break]) -> _Break:
    """Of tables that are truncated together none waits behind the first for its definition."""
    found = redefined
    while (here := statements.get(found.place)) and (before := statements.get((found.seqno, found.fragno - 1))):
        if not _adjacent(before, here):
            break
        found = replace(found, fragno=before.fragno)
    return found


def _older(relation: Relation, log: RowReader) -> Relation:
    """The version before, or this one where it is the first."""
    versions = [
        other
        for other in log.state().relations
        if (other.schema, other.table) == (relation.schema, relation.table) and other.relation_id < relation.relation_id
    ]
    return max(versions, key=lambda other: other.relation_id, default=relation)


def _columns(relation: Relation) -> list[tuple[str, str, int | None]]:
    return [(column.name, column.type_name, column.number) for column in relation.columns]


def _with_values(breaks: Sequence[_Break], log: RowReader) -> tuple[_Break, ...]:
    """Fetch the statements' options and texts, which lie in the wide column, for the few rows that have them."""
    wanted: dict[int, set[int]] = {}
    for found in breaks:
        if found.operation is not Operation.KEY_ARRIVED:
            wanted.setdefault(found.seqno, set()).add(found.fragno)
    texts: dict[_Place, tuple[str, ...]] = {}
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
    """Of a statement, which may have none."""
    return tuple(text for text in values_of(values) if text is not None) if values else ()
