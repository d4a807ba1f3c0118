"""A serial unit as a sequence of steps: rows in sets, statements between them.

Mostly it is one critical transaction. A large load behind a TRUNCATE stays set-based: the rows between two statements
are staged and merged like any unit. After DDL the target's tables are others than staging could know, so what follows
is replayed change by change; so is a transaction that is small, or that changes the definition of a table it writes,
or that has many unsent key changes, and so are several transactions, which dense barriers made one unit. With ddl=skip
a transaction that renames a table is replayed, too: rows under the former name are none of a table of that name.

Before the first row under a newer definition the target is brought to it, or the unit stops there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.apply.outline import MAX_SETS, Break, Place, older_version, outline_of
from airflow_parallel_apply.pipeline.apply.removals import ByHand, require_seen_to
from airflow_parallel_apply.pipeline.apply.sent_when import (
    assumed_before,
    defined_before,
    definitions_before,
    names_then,
    text_of_names,
)
from airflow_parallel_apply.pipeline.apply.serial_parts import is_single
from airflow_parallel_apply.pipeline.apply.stage import Stage
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.change import Operation
from airflow_parallel_apply.pipeline.model.epoch import Serial, Unit
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.target.altering import gives_other_values
from airflow_parallel_apply.pipeline.target.steps import (
    COMES_BEHIND,
    Merge,
    Redefine,
    Remove,
    Replay,
    Statement,
    Step,
    Truncate,
    shown,
    skipping,
    taken_as_done,
)

_REPLAY_ROWS: Final = 500
"""Below this a Spark job costs more than it saves."""
_MAY_RUN: Final = "Run the pipeline with ddl=apply, and the target will run this text; or run it there by hand, and "
_BY_HAND: Final = "The target runs no DDL. Make there by hand what its tables need of this, if anything, then "


def serial_steps(
    unit: Unit,
    log: RowReader,
    stage: Stage,
    ddl: DdlPolicy,
    *,
    show_offset: Callable[[Offset], str],
    runs_ddl: bool,
    by_hand: ByHand | None,
    exactly: bool = False,
) -> tuple[Step, ...]:
    """Stage what is set-based and say what to run, in order. `exactly`: change by change, nothing as a set.
    `show_offset`: as the source's connector does. `runs_ddl`: whether the target can. `by_hand`: where a person sees to
    rows that are gone; None: the target does.

    Errors: `PlanError` for DDL that the pipeline refuses; as `require_seen_to`.
    """
    outline = outline_of(unit, log)
    ends = _ends(unit, log) if any(found.operation in (Operation.MESSAGE, None) for found in outline.breaks) else {}
    if by_hand is not None:
        require_seen_to(outline.breaks, log, ends, by_hand, show_offset=show_offset)
    sent = [found for found in outline.breaks if found.is_ddl]
    if sent and ddl is DdlPolicy.REFUSE:
        # A run that passes over one passes over all of its transaction.
        texts = [found.values[1] for found in sent if found.seqno == sent[0].seqno]
        raise PlanError(
            f"the source sent DDL, which this pipeline refuses: {shown(texts)}",
            op="apply",
            pipeline=unit.pipeline,
            seqno=sent[0].seqno,
            hint=f"{_MAY_RUN if runs_ddl else _BY_HAND}{skipping(show_offset(ends[sent[0].seqno]))}"
            f"{taken_as_done(_redefined(outline.breaks, sent[0].seqno, log))}"
            f"{COMES_BEHIND if _comes_behind_rows(sent, outline.breaks, log) else ''}."
            f"{_under_names([one for one in sent if one.seqno == sent[0].seqno], log)}",
        )
    statements = [found for found in outline.breaks if found.operation is not Operation.KEY_ARRIVED]
    is_skipped = ddl is DdlPolicy.SKIP and any(found.operation is None for found in outline.breaks)
    in_sets = (
        not exactly
        and is_single(unit)
        and outline.row_count > _REPLAY_ROWS
        and len(outline.breaks) <= MAX_SETS
        and not (outline.tables_redefined or is_skipped)
    )
    breaks = outline.breaks if in_sets else statements
    return tuple(
        _steps(unit, log, stage, breaks, outline.last, in_sets=in_sets, ddl=ddl, ends=ends, show_offset=show_offset)
    )


def _comes_behind_rows(sent: Sequence[Break], breaks: Iterable[Break], log: RowReader) -> bool:
    """True if the first transaction that sent DDL wrote rows before a text by which older ones have other values."""
    texts = [one for one in sent if one.seqno == sent[0].seqno and gives_other_values(one.values[1])]
    return bool(texts) and _is_behind_rows(texts[-1], breaks, log)


def _is_behind_rows(message: Break, breaks: Iterable[Break], log: RowReader) -> bool:
    """True if the transaction of a message wrote rows before it."""
    messages = [one for one in breaks if one.operation is Operation.MESSAGE and one.seqno == message.seqno]
    return _count(log, message.seqno, 0, message.fragno) > sum(one.fragno <= message.fragno for one in messages)


def _under_names(sent: Sequence[Break], log: RowReader) -> str:
    """Tell which tables and columns had other names or types by then than the target may know."""
    last = definitions_before(log, sent[-1].seqno)
    told = []
    for then in names_then(sent[-1]):
        relation = last.get(then.oid)
        if relation is not None:
            name = ".".join(then.table or (relation.schema, relation.table))
            told += [f"{relation.name} was {name}"] if name != relation.name else []
            for column in relation.columns:
                others = [found.get(column.number or 0) for found in (then.columns, then.types)]
                told += [f"{column.name} of {name} was {other}" for other in others if other not in (None, column.name)]
    return f" Where the target has names or types of before: by then {listed(told)} at the source." if told else ""


def _steps(
    unit: Unit,
    log: RowReader,
    stage: Stage,
    breaks: Sequence[Break],
    last: Place,
    *,
    in_sets: bool,
    ddl: DdlPolicy,
    ends: Mapping[int, Offset],
    show_offset: Callable[[Offset], str],
) -> Iterator[Step]:
    at: Place = (unit.after_seqno + 1, 0)
    staging = in_sets
    for index, found in enumerate(breaks):
        # The half that leaves the old key lies just before the one that arrives; the replayed update does both.
        begins = found.fragno - 1 if found.operation is Operation.KEY_ARRIVED else found.fragno
        yield from _rows(unit, log, stage, at, (found.seqno, begins - 1), staging=staging)
        if found.operation is None:
            newest = log.state().relation(found.relation_id)
            yield Redefine(
                older_id=older_version(newest, log).relation_id,
                newer_id=newest.relation_id,
                ddl=ddl,
                is_first=found.is_first,
                is_emptied=found.is_emptied,
                end_offset=ends[found.seqno],
                shown_end=show_offset(ends[found.seqno]),
            )
            at, staging = found.place, False
            continue
        at = (found.seqno, found.fragno + 1)
        match found.operation:
            case Operation.TRUNCATE:
                if index and found.is_truncated_with(breaks[index - 1]):
                    continue
                yield _truncate(found, breaks[index:])
            case Operation.MESSAGE if (rows := found.gone_rows) is not None:
                yield Remove(rows=rows, end_offset=ends[found.seqno])
            case Operation.MESSAGE if ddl is DdlPolicy.SKIP or not found.is_ddl:
                continue
            case Operation.MESSAGE:
                end = ends[found.seqno]
                beside = tuple(one.values[1] for one in breaks if _is_sent_beside(found, one))
                yield Statement(
                    text=found.values[1],
                    beside=beside,
                    redefined=_redefined(breaks, found.seqno, log),
                    end_offset=end,
                    shown_end=show_offset(end),
                    names=names_then(found),
                    is_last=not any(_sent_behind(found, breaks)),
                    is_behind_rows=_is_behind_rows(found, breaks, log),
                    computes_behind_rows=_comes_behind_rows(
                        [one for one in breaks if _is_sent_with(found, one)], breaks, log
                    ),
                    defined=defined_before(found, breaks, log),
                    assumed=assumed_before(found, breaks, log),
                )
                staging = False
            case _:
                yield from _rows(unit, log, stage, (found.seqno, begins), found.place, staging=False)
    yield from _rows(unit, log, stage, at, last, staging=staging)


def _is_sent_with(one: Break, other: Break) -> bool:
    return other.is_ddl and other.seqno == one.seqno


def _is_sent_beside(one: Break, other: Break) -> bool:
    return _is_sent_with(one, other) and other.fragno != one.fragno


def _sent_behind(message: Break, breaks: Iterable[Break]) -> Iterator[Break]:
    """The messages that follow one in its transaction, before another definition does, and may have been sent together
    with it behind the statements of all of them: the names are the same.
    """
    for one in breaks:
        if one.seqno == message.seqno and one.fragno > message.fragno:
            if one.operation is None or (one.is_ddl and text_of_names(one) != text_of_names(message)):
                return
            if one.is_ddl:
                yield one


def _redefined(breaks: Iterable[Break], seqno: int, log: RowReader) -> tuple[str, ...]:
    """The tables that a transaction brings newer definitions of."""
    numbers = (found.relation_id for found in breaks if found.operation is None and found.seqno == seqno)
    return tuple(dict.fromkeys(log.state().relation(number).name for number in numbers))


def _ends(unit: Unit, log: RowReader) -> dict[int, Offset]:
    transactions = log.transactions(unit.after_seqno, unit.last_seqno)
    return dict(zip(*(transactions.column(name).to_pylist() for name in ("seqno", "end_offset")), strict=True))


def _truncate(first: Break, candidates: Sequence[Break]) -> Truncate:
    together = [first]
    for found in candidates[1:]:
        if not found.is_truncated_with(together[-1]):
            break
        together.append(found)
    return Truncate(
        relation_ids=tuple(found.relation_id for found in together),
        restart_identity="restart_identity" in first.values,
        seqno=first.seqno,
        fragno=first.fragno,
    )


def _rows(unit: Unit, log: RowReader, stage: Stage, first: Place, last: Place, *, staging: bool) -> Iterator[Step]:
    if last < first:
        return
    if not staging:
        yield Replay(_replay(log, first, last))
        return
    row_count = _count(log, unit.last_seqno, first[1], last[1])
    part = replace(unit, kind=Serial(first_fragno=first[1], last_fragno=last[1]), row_count=row_count)
    if part.row_count:
        yield Merge(stage.stage(part))


def _replay(log: RowReader, first: Place, last: Place) -> Callable[[], Iterator[pa.RecordBatch]]:
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
