"""A ticket: which rows of a log are wanted. Whoever shows it twice gets the same rows, since they are a pure function
of the log; a router may answer it from what it holds, and from the log at any time.

As bytes it is JSON with a version. It holds no secret.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.partition.routing import Routing

_VERSION: Final = 1


class TicketKind(StrEnum):
    """The table of the log that is wanted."""

    ROWS = "rows"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Seqnos (after_seqno, last_seqno] of a log, with what narrows them.

    `log`: its name at the router. `log_id`: refuses another log of that name; empty: any. `routing` and `channel`: only
    the channel's rows, as this routing places them; None: those of all channels. `buckets`: first and last one.
    `columns`, `in_order`, `after_fragno`: as `RowReader.rows` has them. `pipeline`: whose store may hold the rows;
    empty where the log shall answer.
    """

    log: str
    after_seqno: int
    last_seqno: int
    log_id: str = ""
    kind: TicketKind = TicketKind.ROWS
    pipeline: str = ""
    routing: Routing | None = None
    channel: int | None = None
    buckets: tuple[int, int] | None = None
    columns: tuple[str, ...] | None = None
    in_order: bool = False
    after_fragno: int | None = None

    def __post_init__(self) -> None:
        if (self.routing is None) != (self.channel is None):
            raise ConfigurationError("a ticket names a channel with its routing, or neither", op="stream")
        if self.routing is not None and self.channel is not None and not 0 <= self.channel < self.routing.channels:
            raise ConfigurationError(
                f"a ticket names channel {self.channel} of {self.routing.channels}", op="stream", channel=self.channel
            )

    def to_bytes(self) -> bytes:
        """The form in which it is shown to a router."""
        body = {name: getattr(self, name) for name in self.__slots__ if name != "routing"}
        body["routing"] = None if self.routing is None else self.routing.to_json()
        return json.dumps({"version": _VERSION, **body}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Ticket:
        """Inverse of `to_bytes`. Errors: `ConfigurationError` for what is no ticket of this version."""
        try:
            body: dict[str, Any] = json.loads(content)
            version = body.pop("version")
            if version != _VERSION:
                raise ValueError(f"its version is {version!r}, and this software knows {_VERSION}")
            return cls(
                **{
                    **body,
                    "log": _text(body["log"]),
                    "log_id": _text(body["log_id"]),
                    "pipeline": _text(body["pipeline"]),
                    "after_seqno": _number(body["after_seqno"]),
                    "last_seqno": _number(body["last_seqno"]),
                    "kind": TicketKind(body["kind"]),
                    "routing": None if body["routing"] is None else Routing.from_json(body["routing"]),
                    "channel": _optional(body["channel"]),
                    "buckets": None if body["buckets"] is None else _pair(body["buckets"]),
                    "columns": None if body["columns"] is None else _texts(body["columns"]),
                    "in_order": _flag(body["in_order"]),
                    "after_fragno": _optional(body["after_fragno"]),
                }
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"not a ticket of this version: {error}",
                op="stream",
                hint="The router and whoever asks it need the same release of airflow-provider-parallel-apply.",
            ) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return tuple(map(_text, value))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError(f"{value!r} is no 64-bit number")
    return value


def _optional(value: object) -> int | None:
    return None if value is None else _number(value)


def _pair(value: object) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{value!r} is no pair")
    return _number(value[0]), _number(value[1])
