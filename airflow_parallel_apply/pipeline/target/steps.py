"""The steps of a unit: what a target does, in order, inside the one transaction that moves the unit's positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import pyarrow as pa

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.model.gone_rows import GoneRows
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.model.sent_ddl import NamesThen, shown_ddl
from airflow_parallel_apply.pipeline.target.altering import gives_other_values


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge staged net changes into the tables, and drop their staging. Without tables it does nothing."""

    staged: StagedUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Empty these relations together; a target's own references are never cascaded to. `seqno`, `fragno`: where the
    log has the first of them; those of the others follow.
    """

    relation_ids: tuple[int, ...]
    restart_identity: bool = False
    seqno: int = NO_SEQNO
    fragno: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Delete rows that went with a partition, of which the log has none. They are no DDL: `ddl` says nothing of them.
    `end_offset`: where the transaction ends. A target without `Capability.REMOVE` is asked where a person has seen to
    them, and does nothing.
    """

    rows: GoneRows
    end_offset: Offset = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Run DDL text. `beside`: the other texts of its transaction; `redefined`: the tables that it brought newer
    definitions of; `end_offset`: where that ends; `shown_end`: the same in the source's form. `names`: of tables
    whose names, or columns, had changed, as they were when the text was sent; `is_last`: no other one of its
    transaction follows that was sent under these. `is_behind_rows`: the transaction wrote rows before it;
    `computes_behind_rows`: before the last text of all that gives older rows other values.
    `defined`: where it computes values, definitions that tables had before, in the order of the log. `assumed`: columns
    that tables had then, with their definitions, of which nobody knows what older rows held in them.
    """

    text: str
    beside: tuple[str, ...] = ()
    redefined: tuple[str, ...] = ()
    end_offset: Offset = 0
    shown_end: str = ""
    names: tuple[NamesThen, ...] = ()
    is_last: bool = True
    is_behind_rows: bool = False
    computes_behind_rows: bool = False
    defined: tuple[Relation, ...] = ()
    assumed: tuple[tuple[Relation, str], ...] = ()

    @property
    def skipping(self) -> str:
        """See `skipping`: such a run passes over all that the transaction sent."""
        more = "what its transaction sent. Do the rest of that at the target first, except on tables that were copied "
        more += f"anew since: {shown(self.beside)}"
        alone = "this statement" if self.redefined else "this statement alone"
        skipped = f"{skipping(self.shown_end)}, which skips {more if self.beside else alone}"
        return skipped + taken_as_done(self.redefined) + (COMES_BEHIND if self.computes_behind_rows else "")

    @property
    def gives_other_values(self) -> bool:
        """See `altering.gives_other_values`."""
        return gives_other_values(self.text)


@dataclass(frozen=True, slots=True)
class Replay:
    """Apply log rows in (seqno, fragno) order, one by one. KEY_LEFT rows are skipped; KEY_ARRIVED is an update of the
    row that has the old key. `rows` may be called again where the unit is tried again. `is_apart`: each channel's are
    behind a seqno of its own.
    """

    rows: Callable[[], Iterator[pa.RecordBatch]]
    is_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redefine:
    """Bring a table from one definition (a relation id) to a newer one, as `ddl` says; what is left is a `PlanError`.
    `is_first`: no row under the newer one can have been applied, so all rows are older than its new columns.
    `is_emptied`: a later step of the unit empties the table, whose rows need no values any more. `end_offset`: where
    the transaction ends that brought the newer one, None where nothing was copied anew since; `shown_end`: that in the
    source's form.
    """

    older_id: int
    newer_id: int
    ddl: DdlPolicy
    is_first: bool = False
    is_emptied: bool = False
    end_offset: Offset | None = None
    shown_end: str = ""

    @property
    def skipping(self) -> str:
        """See `skipping`."""
        return skipping(self.shown_end)


Step: TypeAlias = Merge | Truncate | Remove | Statement | Replay | Redefine


COMES_BEHIND: Final = (
    ". The rows that the transaction wrote before its statement come behind what you do: where that gives older rows "
    "other values, give them to these rows afterwards"
)
"""The end of a hint to do at the target what was sent, and pass over its transaction."""


def shown(texts: Iterable[str]) -> str:
    """DDL texts as a hint has them, which is no place for long ones."""
    return "; ".join(map(shown_ddl, texts))


def skipping(shown_end: str) -> str:
    """The words of a hint for the run that takes as done what a transaction that ends there changes, and nothing behind
    it, which nobody has looked at.
    """
    return f"run once with ddl=skip{f' and until={shown_end}' if shown_end else ''}"


def taken_as_done(redefined: Sequence[str]) -> str:
    """The sentence that a hint to pass over a transaction's DDL ends with: of these tables more is passed over."""
    if not redefined:
        return ""
    return f". Such a run takes all that the transaction changed of {listed(redefined)} as done, be it sent or not"


class Capability(StrEnum):
    """A step that a target may be able to do beside merging. Asked for one that it cannot do, it raises a
    `PlanError`.
    """

    TRUNCATE = "truncate"
    REPLAY = "replay"
    PREPARE = "prepare"
    """Load the parts of a group as branches that are prepared side by side, and commit all of them or none."""
    DEFINE = "define"
    """Run DDL text, and bring tables to newer definitions: `Statement` and `Redefine`."""
    REMOVE = "remove"
    """Delete rows by the source's condition: `Remove`."""
