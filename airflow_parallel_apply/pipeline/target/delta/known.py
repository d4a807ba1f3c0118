"""The table that a pipeline knows, told from another one in its place.

A table that was made anew, restored to a former version, or put back from a copy has lost rows that the positions say
it has, and nothing in it says so: application transactions outlive a restore. So the positions table has the id of each
table, and the version that the pipeline's last commit made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.tables import commit_path, table_errors

_ANEW: Final = "or drop the pipeline, and begin anew with a copy"
_GONE: Final = ("is not in the lake any more", f"Put it back as it was, {_ANEW}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table at `uri`. `table_id`: empty where a former release knew it; `version`: the last one with rows of ours."""

    uri: str
    table_id: str = ""
    version: int = 0

    def to_text(self) -> str:
        """As a value of the positions table."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Former releases wrote the address alone."""
        return cls(**json.loads(text)) if text.startswith("{") else cls(uri=text)


def with_known(known: Iterable[KnownTable], found: Iterable[KnownTable]) -> tuple[KnownTable, ...]:
    """Tables that are known, as they were found last."""
    tables = {one.uri: one for one in known}
    for one in found:
        before = tables.get(one.uri)
        if before is None or before.table_id != one.table_id or before.version < one.version:
            tables[one.uri] = one
    return tuple(tables.values())


def known_as(table: DeltaTable, uri: str) -> KnownTable:
    """A table as it is now."""
    return KnownTable(uri=uri, table_id=str(table.metadata().id), version=int(table.version()))


def require_known(lake: Lake, table: DeltaTable | None, known: KnownTable, name: str) -> DeltaTable:
    """The table, if it has what the pipeline committed to it. Errors: `TargetError` if not; `Unavailable`."""
    found = lost(lake, table, known)
    if table is None or found is not None:
        what, hint = found or _GONE
        raise TargetError(f"{name} {what}", op="commit", table=name, hint=hint)
    return table


def lost(lake: Lake, table: DeltaTable | None, known: KnownTable) -> tuple[str, str] | None:
    """Tell what became of a table that lacks what the pipeline committed to it, and what to do; None if it lacks
    nothing. Errors: `Unavailable`.
    """
    if table is None:
        return _GONE
    if not known.table_id:
        return None
    if str(table.metadata().id) != known.table_id:
        return "was made anew by somebody else, without the rows that it had", f"Put the former one back, {_ANEW}."
    if table.version() < known.version:
        return f"was set back to version {table.version()}", f"Put version {known.version} back, {_ANEW}."
    restored = _restored(lake, known, int(table.version()))
    if restored is None:
        return None
    return (
        f"was restored to {restored} by somebody else, without the rows of version {known.version}",
        f"Restore it to version {known.version}, {_ANEW}.",
    )


def _restored(lake: Lake, known: KnownTable, at: int) -> str | None:
    """The former version that version `at` is made of; None: it is made of the one that is known. Files of the log that
    are gone tell nothing.
    """
    while at > known.version:
        commit = _commit_info(lake, known.uri, at)
        if commit.get("operation") != "RESTORE":
            at -= 1
            continue
        target = (commit.get("operationParameters") or {}).get("version")
        if target is None or int(target) < known.version:
            return "a former moment" if target is None else f"version {target}"
        at = int(target)
    return None


def _commit_info(lake: Lake, uri: str, version: int) -> dict[str, Any]:
    """A version's own account of it. delta-rs' `history` has it, too, but keeps Python's lock while it waits for the
    storage, and then nobody renews the lease.
    """
    with table_errors("commit"):
        try:
            with lake.files.open_input_file(commit_path(lake, uri, version)) as opened:
                actions = [json.loads(line) for line in opened.read().splitlines()]
        except FileNotFoundError:
            return {}
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
