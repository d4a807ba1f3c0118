"""Explains the plan of a log: epochs, critical transactions and why, rows, bytes and skew by channel, and what each
store would read and write. Writes nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_parallel_apply.pipeline.config import StoreName
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.epoch import Epoch
from airflow_parallel_apply.pipeline.partition.open import routing_findings
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.partition.skew import cost_of_skew, skew_of
from airflow_parallel_apply.pipeline.plan.planner import critical_reasons, plan_epochs
from airflow_parallel_apply.pipeline.plan.spans import EpochLimits
from airflow_parallel_apply.router.store_costs import StoreCost, recommended, store_costs

_SHOWN_EPOCHS = 40
_BAR_WIDTH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A log under a routing."""

    log_id: str
    routing: Routing
    epochs: tuple[Epoch, ...]
    critical: dict[str, int]
    """Critical transactions by their reason; those that lie densely share an epoch."""
    store: StoreName = StoreName.LOG
    costs: tuple[StoreCost, ...] = ()
    refused: tuple[str, ...] = ()
    """Why a pipeline with this routing would not start: what of which table the partitioner cannot place."""

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self.routing.channels

    @property
    def rows(self) -> tuple[int, ...]:
        """By channel."""
        return tuple(sum(epoch.rows[channel] for epoch in self.epochs) for channel in range(self.channels))

    @property
    def bytes_(self) -> tuple[int, ...]:
        """The bytes of values, by channel."""
        return tuple(sum(epoch.bytes_[channel] for epoch in self.epochs) for channel in range(self.channels))

    @property
    def skew(self) -> float:
        """The fullest channel's rows over the mean; 1.0 is even."""
        return skew_of(self.rows)

    def to_json(self) -> dict[str, Any]:
        """Every epoch, and the sums."""
        return {
            "log_id": self.log_id,
            "channels": self.channels,
            "partitioner": self.routing.partitioner,
            "store": self.store,
            "critical": self.critical,
            "refused": list(self.refused),
            "rows": list(self.rows),
            "bytes": list(self.bytes_),
            "stores": [asdict(cost) for cost in self.costs],
            "recommended_store": recommended(self.costs)[0] if self.costs else None,
            "skew": round(self.skew, 3),
            "epochs": [
                {
                    "number": epoch.number,
                    "first_seqno": epoch.first_seqno,
                    "last_seqno": epoch.last_seqno,
                    "kind": epoch.kind,
                    "reason": epoch.reason,
                    "rows": list(epoch.rows),
                }
                for epoch in self.epochs
            ],
        }


def explain(
    log_url: str,
    *,
    routing: Routing,
    limits: EpochLimits,
    after_seqno: int = NO_SEQNO,
    store: StoreName = StoreName.LOG,
) -> Explanation:
    """Plan the log from `after_seqno` on, as a pipeline with this routing would. Errors: `LogError`."""
    log = open_reader(log_url)
    state = log.state()
    after = max(after_seqno, state.purged_seqno)
    epochs = plan_epochs(
        log,
        after_seqno=after,
        last_seqno=state.last_seqno,
        first_number=0,
        routing=routing,
        limits=limits,
    )
    newest = {relation.name: relation for relation in state.relations}
    critical = critical_reasons(log, after_seqno=after, last_seqno=state.last_seqno, routing=routing)
    return Explanation(
        log_id=log.identity.log_id,
        routing=routing,
        store=store,
        epochs=epochs,
        costs=store_costs(state.segments, epochs, routing, after),
        critical={str(reason): critical[reason] for reason in sorted(critical)},
        refused=tuple(finding.what for finding in routing_findings(routing, tuple(newest.values()))),
    )


def show(explanation: Explanation, console: Console) -> None:
    """For a terminal."""
    console.print(_channels(explanation))
    cost = cost_of_skew(explanation.rows)
    if cost is not None:
        console.print(cost, highlight=False)
    if explanation.costs:
        console.print(_stores(explanation))
    console.print(_epochs(explanation))
    for refusal in explanation.refused:
        console.print(Text(f"a pipeline with this routing would be refused: {refusal}", style="bold red"))


def _channels(explanation: Explanation) -> RenderableType:
    table = Table(
        title=f"rows by channel with {explanation.routing.partitioner}, skew {explanation.skew:.2f}, store "
        f"{explanation.store}",
        title_justify="left",
        box=None,
    )
    table.add_column("channel", justify="right")
    table.add_column("rows", justify="right")
    table.add_column("MB", justify="right")
    table.add_column("")
    fullest = max(explanation.bytes_, default=0)
    for channel, (rows, size) in enumerate(zip(explanation.rows, explanation.bytes_, strict=True)):
        bar = Bar(size=max(fullest, 1), begin=0, end=size, width=_BAR_WIDTH)
        table.add_row(str(channel), f"{rows:,}", _mb(size), bar)
    return table


def _stores(explanation: Explanation) -> RenderableType:
    table = Table(title="what each store would take, MB of files", title_justify="left", box=None)
    table.add_column("store")
    for name in ("read", "written", "may wait in a router"):
        table.add_column(name, justify="right")
    for cost in explanation.costs:
        table.add_row(cost.store, _mb(cost.read_bytes), _mb(cost.written_bytes), _mb(cost.waiting_bytes))
    store, why = recommended(explanation.costs)
    return Group(table, Text(f"recommended: store={store}: {why}"))


def _mb(size: int) -> str:
    return f"{size / 2**20:,.1f}"


def _epochs(explanation: Explanation) -> RenderableType:
    epochs = explanation.epochs
    why = ", ".join(f"{count} × {reason}" for reason, count in explanation.critical.items()) or "none"
    table = Table(title=f"{len(epochs)} epochs; critical transactions: {why}", title_justify="left", box=None)
    for name in ("epoch", "seqnos", "kind", "closed by", "rows", ""):
        table.add_column(name, justify="right" if name in ("epoch", "rows") else "left")
    largest = max((epoch.row_count for epoch in epochs), default=0)
    for epoch in epochs[:_SHOWN_EPOCHS]:
        table.add_row(
            str(epoch.number),
            f"{epoch.first_seqno}–{epoch.last_seqno}",
            epoch.kind,
            epoch.reason,
            f"{epoch.row_count:,}",
            Bar(size=max(largest, 1), begin=0, end=epoch.row_count, width=_BAR_WIDTH),
        )
    more = len(epochs) - _SHOWN_EPOCHS
    return Group(table, f"… and {more} more (--json shows all)") if more > 0 else table
