"""The report of an export: what a task returns, and what a command prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """The outcome of an export. `first_seqno`, `last_seqno`: of a log's range, how far the place comes now; None of a
    query. `version`: of the newest manifest; None before the first one, and of topics. `files`: URLs of those that were
    added. `topics`: names of those that were sent to. `texts`: columns, as schema.table.column, that keep the source's
    text.
    """

    first_seqno: int | None
    last_seqno: int | None
    version: int | None
    rows: int
    bytes_: int
    files: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    export_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """The form of XComs and of `--json`."""
        lists = {name: list(getattr(self, name)) for name in ("files", "topics", "texts")}
        return {**asdict(self), **lists}

    def __str__(self) -> str:
        what = f"the query's rows, export {self.export_id}"
        if self.last_seqno is not None:
            what = f"seqnos {self.first_seqno} to {self.last_seqno}"
        if not self.files and not self.topics:
            if self.last_seqno is None:
                return f"nothing to export: the place has {what}, or there are none"
            return f"nothing to export: the place comes up to seqno {self.last_seqno}"
        size = f"exported {what}: {self.rows:,} rows, {self.bytes_ / 2**20:,.1f} MB"
        if self.topics:
            return f"{size} in topics {', '.join(self.topics)}"
        return f"{size} in {len(self.files)} files, version {self.version}"
