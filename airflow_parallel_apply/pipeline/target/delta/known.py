"""The table that a pipeline knows, told from another one in its place.

A table that was made anew, restored to a former version, or put back from a copy has lost rows that the positions say
it has, and nothing in it says so: application transactions outlive a restore. So the positions table has the id of each
table, and the version and the transaction that the pipeline's last commit made. A table that the source gave another
name is the same one: somebody moves its directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.errors import START_ANEW
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.tables import commit_path, table_errors, transaction_version

_EXPIRY: Final = "delta.setTransactionRetentionDuration"
_OR_ANEW: Final = f", or start anew. {START_ANEW}"
_GONE: Final = ("is not in the lake any more", f"Put it back as it was{_OR_ANEW}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTable:
    """A table at `uri`. `table_id`: empty where a former release knew it; `version`: the last one with rows of ours.
    `oid`: the source's; None in a feed, where each name has its own table, and where a former release knew it.
    `application`, `seqno`: the transaction that the version set; empty before the first row of ours.
    """

    uri: str
    table_id: str = ""
    version: int = 0
    oid: int | None = None
    application: str = ""
    seqno: int = 0

    @property
    def identity(self) -> int | str:
        """It is this table as long as this stays."""
        return self.uri if self.oid is None else self.oid

    def to_text(self) -> str:
        """As a value of the positions table."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`. Former releases wrote the address alone."""
        return cls(**json.loads(text)) if text.startswith("{") else cls(uri=text)


def with_known(known: Iterable[KnownTable], found: Iterable[KnownTable]) -> tuple[KnownTable, ...]:
    """Tables that are known, as they were found last."""
    tables = {one.identity: one for one in known}
    for one in found:
        before = tables.get(one.identity)
        if one.oid is not None:
            tables.pop(one.uri, None)
        is_moved = before is not None and (before.uri, before.table_id) != (one.uri, one.table_id)
        if before is None or is_moved or before.version < one.version:
            tables[one.identity] = one
    return tuple(tables.values())


def known_as(table: DeltaTable, uri: str, oid: int | None) -> KnownTable:
    """A table as it is now."""
    return KnownTable(uri=uri, table_id=str(table.metadata().id), version=int(table.version()), oid=oid)


def look_for(
    lake: Lake,
    table: DeltaTable | None,
    relation: Relation,
    tables: Sequence[KnownTable],
    definitions: Callable[[], Sequence[Relation]],
) -> tuple[KnownTable | None, tuple[str, str] | None]:
    """Return a relation's table as it is known, None of a new one; and what keeps the one at its address from being it,
    with what to do. `definitions`: all of the log, the oldest first. Errors: `Unavailable`.
    """
    uri = lake.table_uri(relation.schema, relation.table)
    table_id = "" if table is None else str(table.metadata().id)
    known = next((one for one in tables if one.oid is not None and one.oid == relation.oid), None)
    if known is not None and known.uri != uri and table_id != known.table_id:
        hint = f"Its table lies in {known.uri}, by its former name. Move that directory to {uri}, then run again."
        return known, ("is not in the lake by this name", hint)
    if known is None:
        known = next((one for one in reversed(tables) if one.uri == uri), None)
        if known is not None and (last := _last_of(known, definitions)) is not None and last.name != relation.name:
            if table_id != known.table_id:
                return None, None
            hint = f"Move the directory {uri} to {lake.table_uri(last.schema, last.table)}, then run again."
            return None, (f"has in its place the table that the source calls {last.name} now", hint)
    if known is None:
        return None, None
    known = replace(known, uri=uri)
    return known, lost(lake, table, known)


def _last_of(known: KnownTable, definitions: Callable[[], Sequence[Relation]]) -> Relation | None:
    if known.oid is None:
        return None
    return next((one for one in reversed(definitions()) if one.oid == known.oid), None)


def lost(lake: Lake, table: DeltaTable | None, known: KnownTable) -> tuple[str, str] | None:
    """Tell what became of a table that lacks what the pipeline committed to it, and what to do; None if it lacks
    nothing. Errors: `Unavailable`.
    """
    if table is None:
        return _GONE
    if not known.table_id:
        return None
    if str(table.metadata().id) != known.table_id:
        return "was made anew by somebody else, without the rows that it had", f"Put the former one back{_OR_ANEW}"
    if table.version() < known.version:
        return f"was set back to version {table.version()}", f"Put version {known.version} back{_OR_ANEW}"
    if known.application and _lacks(table, known):
        return (
            f"was put back from an older copy by somebody else, without the rows of version {known.version}",
            f"Put version {known.version} back{_OR_ANEW}",
        )
    restored = _restored(lake, known, int(table.version()))
    if restored is None:
        return None
    return (
        f"was restored to {restored} by somebody else, without the rows of version {known.version}",
        f"Restore it to version {known.version}{_OR_ANEW}",
    )


def advanced(lake: Lake, table: DeltaTable, known: KnownTable, transactions: Mapping[str, int]) -> KnownTable:
    """The table as of the commit since the known version that set these transactions, whoever made it; as it was known
    where the log does not tell. Errors: `Unavailable`.
    """
    application, seqno = next(iter(transactions.items()))
    for version in range(known.version + 1, int(table.version()) + 1):
        found = {one["appId"]: one["version"] for one in _actions(lake, known.uri, version, "txn")}
        if transactions.items() <= found.items():
            return replace(known, version=version, application=application, seqno=seqno)
    return known


def _lacks(table: DeltaTable, known: KnownTable) -> bool:
    reached = transaction_version(table, known.application)
    if reached is None:
        return _EXPIRY not in table.metadata().configuration
    return reached < known.seqno


def _restored(lake: Lake, known: KnownTable, at: int) -> str | None:
    """The former version that version `at` is made of; None: it is made of the one that is known. Files of the log that
    are gone tell nothing.
    """
    while at > known.version:
        commit = next(_actions(lake, known.uri, at, "commitInfo"), {})
        if commit.get("operation") != "RESTORE":
            at -= 1
            continue
        target = (commit.get("operationParameters") or {}).get("version")
        if target is None or int(target) < known.version:
            return "a former moment" if target is None else f"version {target}"
        at = int(target)
    return None


def _actions(lake: Lake, uri: str, version: int, kind: str) -> Iterator[dict[str, Any]]:
    """The actions of one kind in a version's own account of it. delta-rs' `history` has it, too, but keeps Python's
    lock while it waits for the storage, and then nobody renews the lease.
    """
    with table_errors("commit"):
        try:
            with lake.files.open_input_file(commit_path(lake, uri, version)) as opened:
                actions = [json.loads(line) for line in opened.read().splitlines()]
        except FileNotFoundError:
            return
    yield from (action[kind] for action in actions if kind in action)
