"""The content of a pipeline's positions table, as values.

A unit that is `Decided` will be in the tables, whatever dies: its rows are staged, and whoever comes next brings them
in.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import pyarrow as pa

from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.target.delta.known import KnownTable


class Effect(StrEnum):
    """The effect of one commit on its table."""

    MERGE = "merge"
    """Staged net changes by key; of a table without one, staged insertions and deletions."""
    TRUNCATE = "truncate"
    REPLAY = "replay"
    """Staged rows of the log, one after the other."""
    ADD_COLUMNS = "add columns"
    APPEND = "append"
    """Staged changes of a feed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One commit to one table. `relation_id`: its definition in the log. `files`: staged, by their paths below the
    pipeline's staging. `added`: the columns that are null in older rows.
    """

    effect: Effect
    relation_id: int
    files: tuple[str, ...] = ()
    has_unsent: bool = False
    added: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Inverse of `dataclasses.asdict`."""
        added = tuple(value.get("added", ()))
        return cls(**{**value, "effect": Effect(value["effect"]), "files": tuple(value["files"]), "added": added})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A unit whose commit is decided. `scope`: its channel, or None for all. The changes of one table are in order."""

    scope: int | None
    last_seqno: int
    token: str
    changes: tuple[TableChange, ...]

    def to_text(self) -> str:
        """As a value of the positions table."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`."""
        value = json.loads(text)
        return cls(**{**value, "changes": tuple(TableChange.from_json(one) for one in value["changes"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One version of a positions table. `life`: tells the pipeline from a former one of its name. `ledger`: the
    database of the pipeline's ledger. `positions`: by channel. `decided`: at most one of each channel, or one of all.
    `parts`: who stages which part of a group, scope and token.
    `tables`: those that a unit was decided for.
    """

    life: str
    log_id: str = ""
    ledger: str = ""
    routing_digest: str = ""
    generation: int = 0
    positions: tuple[Position, ...] = ()
    decided: tuple[Decided, ...] = ()
    parts: tuple[tuple[str, str], ...] = ()
    tables: tuple[KnownTable, ...] = ()

    def with_position(self, position: Position) -> State:
        """With another position of one channel."""
        return replace(
            self, positions=tuple(position if one.channel == position.channel else one for one in self.positions)
        )

    def decided_of(self, channel: int | None) -> tuple[Decided, ...]:
        """The decided units of a channel, with those of all channels; None: all."""
        return tuple(one for one in self.decided if channel is None or one.scope in (None, channel))

    def app_id(self, pipeline: str, scope: int | None) -> str:
        """The application whose transactions say how far a table is: one for each channel, and one for all."""
        return f"{pipeline}/{self.life}/{'all' if scope is None else scope}"


SCHEMA = pa.schema(
    [
        pa.field("channel", pa.int32()),
        pa.field("seqno", pa.int64()),
        pa.field("generation", pa.int64(), nullable=False),
        pa.field("claim", pa.string()),
        pa.field("decided", pa.string()),
        pa.field("parts", pa.string()),
        pa.field("tables", pa.list_(pa.string())),
        pa.field("log_id", pa.string()),
        pa.field("routing_digest", pa.string()),
        pa.field("ledger", pa.string()),
        pa.field("life", pa.string(), nullable=False),
    ]
)
"""A row for each channel, and one without a channel for all of them."""


def to_rows(state: State) -> pa.Table:
    """The rows that say it."""
    decided = {one.scope: one.to_text() for one in state.decided}
    common: dict[str, Any] = {
        "log_id": state.log_id,
        "routing_digest": state.routing_digest,
        "ledger": state.ledger,
        "life": state.life,
    }
    whole: dict[str, Any] = {
        "channel": None,
        "seqno": None,
        "generation": state.generation,
        "claim": None,
        "decided": decided.get(None),
        "parts": json.dumps(state.parts),
        "tables": [one.to_text() for one in state.tables],
    }
    each = [
        {
            "channel": at.channel,
            "seqno": at.seqno,
            "generation": at.generation,
            "claim": at.claim,
            "decided": decided.get(at.channel),
        }
        for at in state.positions
    ]
    return pa.Table.from_pylist([{**row, **common} for row in (whole, *each)], schema=SCHEMA)


def from_rows(rows: pa.Table) -> State:
    """Inverse of `to_rows`."""
    found = sorted(rows.to_pylist(), key=lambda row: -1 if row["channel"] is None else row["channel"])
    whole, *each = found
    return State(
        life=whole["life"],
        log_id=whole["log_id"] or "",
        ledger=whole["ledger"] or "",
        routing_digest=whole["routing_digest"] or "",
        generation=whole["generation"],
        positions=tuple(
            Position(channel=row["channel"], seqno=row["seqno"], generation=row["generation"], claim=row["claim"])
            for row in each
        ),
        decided=tuple(Decided.from_text(row["decided"]) for row in found if row["decided"] is not None),
        parts=tuple((scope, token) for scope, token in json.loads(whole["parts"])),
        tables=tuple(KnownTable.from_text(text) for text in whole["tables"] or ()),
    )
