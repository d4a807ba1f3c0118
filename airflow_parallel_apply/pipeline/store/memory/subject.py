"""The subject of every call about the store `memory`: a pipeline's rows under one routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.partition.routing import Routing

FEED: Final = "feed"
"""Stretches that are to be held. `stretches`: pairs of after_seqno and last_seqno."""
HELD: Final = "held"
"""Asks whether the rows of a `channel` in (`after_seqno`, `last_seqno`] are held, the last transaction being the one
with this `end_offset` and `commit_time`; the answer names the `log`.
"""
FORGET: Final = "forget"
"""The rows of a `channel` in (`after_seqno`, `last_seqno`] are in doubt."""
TRIM: Final = "trim"
"""`positions`: by channel, a seqno that the target has on disk."""
STATS: Final = "stats"
"""Asks what is held, by channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Everything that a channel's rows depend on, beside their seqnos: the log, what it passes over since tables were
    copied anew, the pipeline and its routing. `root`: the log's directory as the client sees it; empty where it sees
    none.
    """

    log_id: str
    root: str
    recopies: tuple[str, ...]
    pipeline: str
    routing: Routing

    @classmethod
    def of_pipeline(cls, log: LogReader, pipeline: str, routing: Routing) -> Subject:
        """The subject as the log is now. Errors: `LogError`."""
        return cls(
            log_id=log.identity.log_id,
            root=str(log.root or ""),
            recopies=tuple(sorted(one.recopy_id for one in log.state().passed_over)),
            pipeline=pipeline,
            routing=routing,
        )

    def to_json(self) -> dict[str, Any]:
        """The part of each call's body that names it."""
        return {
            "log_id": self.log_id,
            "root": self.root,
            "recopies": list(self.recopies),
            "pipeline": self.pipeline,
            "routing": self.routing.to_json(),
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Subject:
        """Inverse of `to_json`. Errors: `KeyError`, `TypeError`, `ValueError` for anything else."""
        return cls(
            log_id=str(body["log_id"]),
            root=str(body["root"]),
            recopies=tuple(map(str, body["recopies"])),
            pipeline=str(body["pipeline"]),
            routing=Routing.from_json(body["routing"]),
        )
