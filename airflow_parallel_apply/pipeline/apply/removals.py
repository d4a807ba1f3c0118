"""Rows that went with a partition of the source's, where the target does not read the condition that they met: a person
sees to them, and says so by a run that ends with the transaction which took them. No other run passes over that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.apply.outline import Break
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, PlanError
from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.model.gone_rows import GoneRows
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.target.steps import shown, skipping


class RowsLeft(PlanError):
    """Rows that a person is to see to; the hint names the run that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
    """The part of a person at such a target. `is_feed`: it keeps every change, and no row can be deleted there.
    `seen_to`: where the transaction ends whose rows somebody has seen to, None where nobody has said so.
    """

    is_feed: bool
    seen_to: Offset | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gone:
    """Rows that a transaction took. `are_behind`: it had written rows of the table before; `are_before`: and behind."""

    relation: Relation
    condition: str
    are_behind: bool
    are_before: bool

    def __str__(self) -> str:
        return f"the rows of {self.relation.name} that meet this, in its own words: {self.condition}"


def require_seen_to(
    breaks: Sequence[Break],
    log: RowReader,
    ends: Mapping[int, Offset],
    by_hand: ByHand,
    *,
    show_offset: Callable[[Offset], str],
) -> None:
    """Raise `RowsLeft` for rows of a unit that are gone, unless somebody has seen to them. `ends`: of transactions."""
    for found in breaks:
        if (rows := found.gone_rows) is not None and ends[found.seqno] != by_hand.seen_to:
            name = log.state().relation(rows.relation_id).name
            beside = [one for one in breaks if one.seqno == found.seqno]
            raise RowsLeft(
                f"rows of {name} went with a partition that was detached or dropped at the source, and no change says "
                f"so; they meet {rows.condition}",
                op="apply",
                table=name,
                seqno=found.seqno,
                hint=_hint(beside, log, skipping(show_offset(ends[found.seqno])), is_feed=by_hand.is_feed),
            )


def _hint(beside: Sequence[Break], log: RowReader, run: str, *, is_feed: bool) -> str:
    every = [_gone(one, rows, log) for one in beside if (rows := one.gone_rows) is not None]
    more = [*dict.fromkeys(_more(beside, log))]
    if is_feed:
        more += [f"the rows of {one.relation.name} that meet {one.condition}" for one in every[1:]]
        told = f" Such a run passes over more of the same transaction: {'; '.join(more)}." if more else ""
        return f"{START_ELSEWHERE} Only where whoever reads the feed leaves these rows out: {run}.{told}"
    begin = [f"Delete at the target {one}." for one in every if not one.are_behind]
    begin.append(f"Then {run}." if begin else f"To go on, {run}.")
    if more:
        begin.append(
            f"Such a run takes more of the same transaction as done, so do that first, too: {'; '.join(more)}."
        )
    return " ".join((*begin, *(_afterwards(one) for one in every if one.are_behind)))


def _afterwards(gone: _Gone) -> str:
    """Deleted before the run, its rows would be missed by the changes of them, and come again with it."""
    but = ", but for those that it wrote behind that" if gone.are_before else ""
    return f"Behind that run, since the transaction wrote rows of the table before, delete at the target {gone}{but}."


def _more(beside: Sequence[Break], log: RowReader) -> Iterator[str]:
    for one in beside:
        if one.operation is None:
            yield f"what it changed of the definition of {log.state().relation(one.relation_id).name}"
        elif one.is_ddl:
            yield shown([one.values[1]])


def _gone(message: Break, rows: GoneRows, log: RowReader) -> _Gone:
    relations = log.state().relations
    relation = log.state().relation(rows.relation_id)
    table = relation.oid or relation.name
    ids = pa.array([one.relation_id for one in relations if (one.oid or one.name) == table], pa.int32())
    first, last = message.fragno, message.fragno
    for batch in log.rows(message.seqno - 1, message.seqno, columns=["fragno", "relation_id", "operation"]):
        is_row = pc.and_(
            pc.is_in(batch.column("relation_id"), ids), pc.not_equal(batch.column("operation"), Operation.MESSAGE.value)
        )
        found = pc.min_max(batch.column("fragno").filter(is_row)).as_py()
        if found["min"] is not None:
            first, last = min(first, found["min"]), max(last, found["max"])
    return _Gone(
        relation=relation,
        condition=rows.condition,
        are_behind=first < message.fragno,
        are_before=last > message.fragno,
    )
