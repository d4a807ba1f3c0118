"""Brings what is decided into the tables, one commit for each change of a table; whoever does it, and however often.

Each commit sets the table's application transactions to the unit's last seqno, for every channel whose rows the unit
has, so that what is there already is passed over. Where a unit changes one table several times, a transaction of its
own counts the changes that are done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.errors import START_ANEW, PlanError, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.delta.columns import require_feed, require_fit
from airflow_parallel_apply.pipeline.target.delta.definition import add_columns, make_table, require_addable
from airflow_parallel_apply.pipeline.target.delta.finding import find_rows
from airflow_parallel_apply.pipeline.target.delta.formats import require_format
from airflow_parallel_apply.pipeline.target.delta.insertion import are_new
from airflow_parallel_apply.pipeline.target.delta.known import KnownTable, advanced, known_as, look_for, lost
from airflow_parallel_apply.pipeline.target.delta.loader import staged_rows
from airflow_parallel_apply.pipeline.target.delta.merge import append, append_changes, merge
from airflow_parallel_apply.pipeline.target.delta.multiset import change_rows
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.replay import replayed
from airflow_parallel_apply.pipeline.target.delta.staging import Staging
from airflow_parallel_apply.pipeline.target.delta.state import Decided, Effect, State, TableChange
from airflow_parallel_apply.pipeline.target.delta.tables import (
    commit_nothing,
    conditionally,
    from_newest,
    open_table,
    schema_of,
    sync,
    table_errors,
    transaction_version,
)
from airflow_parallel_apply.pipeline.target.relations import Relations

MOST_CHANGES: Final = 4096
"""The most changes of one table in one unit."""


class Applier:
    """Applies decided units of one pipeline. One thread's."""

    def __init__(self, lake: Lake, pipeline: str, relations: Relations) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._relations = relations
        self._staging = Staging(lake, pipeline)

    def prepare(self, state: State, changes: Sequence[TableChange], channels: Mapping[int, int]) -> list[KnownTable]:
        """Refuse, before it is decided, what could not be applied, and make tables that were never there; returns the
        tables. `channels`: those of the unit, and their seqnos. Errors: `StagingLost`, `TargetError`,
        `PlanError`.
        """
        self._staging.require([name for change in changes for name in change.files])
        tables: list[KnownTable] = []
        for relation, own in self._by_table(changes):
            if len(own) >= MOST_CHANGES:
                raise PlanError(f"a unit changes {relation.name} {len(own)} times", table=relation.name)
            uri = self._uri(relation)
            table = open_table(self._lake, uri)
            known = self._look_for(state, relation, table)
            if table is None:
                make_table(self._lake, relation)
                table = self._open(relation)
            require_format(table, relation)
            found = self._known_as(table, relation)
            tables.append(found if known is None else replace(known, table_id=found.table_id, oid=found.oid))
            if self._lake.is_feed:
                require_feed(relation, schema_of(table))
            else:
                require_addable(table, relation, [name for change in own for name in change.added])
                adds_columns = any(change.effect is Effect.ADD_COLUMNS for change in own)
                require_fit(relation, schema_of(table), adds_columns=adds_columns)
            for channel, seqno in channels.items():
                reached = transaction_version(table, state.app_id(self._pipeline, channel))
                if reached is not None and reached > seqno:
                    raise TargetError(
                        f"{relation.name} has the rows of channel {channel} up to seqno {reached}, and its position is "
                        f"{seqno}",
                        op="commit",
                        table=relation.name,
                        hint="The lake was restored in part. Restore tables and _parallel_apply to one moment.",
                    )
        return tables

    def apply(self, state: State, decided: Decided) -> list[KnownTable]:
        """Bring everything in; returns the tables as the last commits made them, whoever made these. Errors:
        `Unavailable`; `TargetError` where a table refuses.
        """
        found = (
            from_newest(partial(self._apply, state, decided, relation, changes), what=relation.name)
            for relation, changes in self._by_table(decided.changes)
        )
        return [one for one in found if one is not None]

    def has_begun(self, state: State, decided: Decided) -> bool:
        """True if a table has something of it."""
        done = partial(self._done, state, decided)
        return any(done(self._open(relation), changes) for relation, changes in self._by_table(decided.changes))

    def _apply(
        self, state: State, decided: Decided, relation: Relation, changes: Sequence[TableChange]
    ) -> KnownTable | None:
        table = self._open(relation)
        # Of the version that is committed from: somebody may have altered the table since it was decided.
        require_format(table, relation)
        known = self._look_for(state, relation, table)
        each = [self._transactions(state, decided, number, of=len(changes)) for number in range(len(changes))]
        done = self._done(state, decided, table, changes)
        if done and known is not None:
            known = advanced(self._lake, table, known, each[done - 1])
            _require_whole(relation, lost(self._lake, table, known))
        if done == len(changes):
            return known
        for change, transactions in zip(changes[done:], each[done:], strict=True):
            before = table.version()
            self._change(table, change, transactions)
            if table.version() == before:
                # Where no row changes, as none does where an empty table is truncated, delta-rs makes no commit.
                with table_errors("commit", table=relation.name):
                    commit_nothing(table, transactions)
            sync(self._lake, self._uri(relation), table.version())
        application, seqno = next(iter(each[-1].items()))
        return replace(self._known_as(table, relation), application=application, seqno=seqno)

    def _look_for(self, state: State, relation: Relation, table: DeltaTable | None) -> KnownTable | None:
        """A relation's table as it is known. Errors: `TargetError` where another one is in its place."""
        known, trouble = look_for(self._lake, table, relation, state.tables, self._relations.definitions)
        _require_whole(relation, trouble)
        return known

    def _transactions(self, state: State, decided: Decided, number: int, *, of: int) -> dict[str, int]:
        """Application transactions that the commit of one of a table's changes sets."""
        if number + 1 < of:
            return {self._counter(state, decided): decided.last_seqno * MOST_CHANGES + number + 1}
        return {state.app_id(self._pipeline, channel): decided.last_seqno for channel in _channels(state, decided)}

    def _done(self, state: State, decided: Decided, table: DeltaTable, changes: Sequence[TableChange]) -> int:
        """How many of the changes the table has."""
        channel = _channels(state, decided)[0]
        reached = transaction_version(table, state.app_id(self._pipeline, channel))
        if reached is not None and reached >= decided.last_seqno:
            return len(changes)
        seqno, number = divmod(transaction_version(table, self._counter(state, decided)) or 0, MOST_CHANGES)
        return number if seqno == decided.last_seqno else 0

    def _change(self, table: DeltaTable, change: TableChange, transactions: Mapping[str, int]) -> None:
        relation = self._relations(change.relation_id)
        match change.effect:
            case Effect.MERGE:
                staged = self._staging.read(change.files)
                _bring(table, relation, staged, transactions, has_unsent=change.has_unsent)
            case Effect.APPEND:
                append_changes(table, relation, self._staging.read(change.files), transactions)
            case Effect.TRUNCATE:
                with table_errors("commit", table=relation.name):
                    table.delete(commit_properties=conditionally(transactions))
            case Effect.REPLAY:
                changes = replayed(relation, self._staging.read(change.files), partial(find_rows, table, relation))
                staged = pa.Table.from_batches([staged_rows(relation, changes)])
                _bring(table, relation, staged, transactions, has_unsent=changes.unsent is not None)
            case Effect.ADD_COLUMNS:
                add_columns(table, relation, transactions)

    def _by_table(self, changes: Sequence[TableChange]) -> list[tuple[Relation, list[TableChange]]]:
        """Tables in the order in which they are changed first, by the newest definition that the unit has of each."""
        found: dict[str, list[TableChange]] = {}
        for change in changes:
            found.setdefault(self._uri(self._relations(change.relation_id)), []).append(change)
        return [(self._relations(own[-1].relation_id), own) for own in found.values()]

    def _open(self, relation: Relation) -> DeltaTable:
        table = open_table(self._lake, self._uri(relation))
        if table is None:
            raise TargetError(
                "the lake has no such table",
                op="commit",
                table=relation.name,
                hint=f"Somebody removed it. Restore it, or start anew. {START_ANEW}",
            )
        return table

    def _known_as(self, table: DeltaTable, relation: Relation) -> KnownTable:
        return known_as(table, self._uri(relation), None if self._lake.is_feed else relation.oid)

    def _uri(self, relation: Relation) -> str:
        return self._lake.table_uri(relation.schema, relation.table)

    def _counter(self, state: State, decided: Decided) -> str:
        return f"{state.app_id(self._pipeline, decided.scope)}/changes"


def _bring(
    table: DeltaTable, relation: Relation, staged: pa.Table, transactions: Mapping[str, int], *, has_unsent: bool
) -> None:
    """Bring staged net changes into a table. Errors: `Outrun`, `Unavailable`, `TargetError`."""
    if not relation.key_indexes:
        change_rows(table, relation, staged, transactions)
    elif are_new(table, relation, staged):
        append(table, relation, staged, transactions)
    else:
        merge(table, relation, staged, transactions, has_unsent=has_unsent)


def _require_whole(relation: Relation, trouble: tuple[str, str] | None) -> None:
    if trouble is not None:
        what, hint = trouble
        raise TargetError(f"{relation.name} {what}", op="commit", table=relation.name, hint=hint)


def _channels(state: State, decided: Decided) -> Sequence[int]:
    """Those that a unit moves, the slowest first: of channels that stand apart, one may be at the unit's end without
    it, and its transaction tells nothing then.
    """
    if decided.scope is not None:
        return [decided.scope]
    return [at.channel for at in sorted(state.positions, key=lambda at: at.seqno)]
