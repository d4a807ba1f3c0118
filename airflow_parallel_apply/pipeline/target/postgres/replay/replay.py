"""Exact replay: change by change in source order. Slower than a merge, and right whatever the constraints are.

Statements (see `replay_statements`) are sent through the protocol's pipeline, some hundreds at a time, with the
server's own parameter marks: a name may hold any character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import LogError, ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.model.copy_text import values_of
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import rows_differ
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import translate
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.enum_labels import say_label
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import (
    DELETE,
    INSERT,
    TRIGGER,
    UPDATE,
    changed_rows,
    find_guards,
    turned_away,
)
from airflow_parallel_apply.pipeline.target.postgres.merge.cascades import Cascades, find_acting_keys
from airflow_parallel_apply.pipeline.target.postgres.merge.missing_rows import key_text
from airflow_parallel_apply.pipeline.target.postgres.merge.multiset import missing_images
from airflow_parallel_apply.pipeline.target.postgres.merge.reinserting import Reinserting, by_default_hint, fixed_column
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import hold_applied
from airflow_parallel_apply.pipeline.target.postgres.redefine.columns_ahead import require_own_columns
from airflow_parallel_apply.pipeline.target.postgres.redefine.expressions import require_computed_alike
from airflow_parallel_apply.pipeline.target.postgres.replay.replay_changes import Change, Sent
from airflow_parallel_apply.pipeline.target.postgres.replay.replay_statements import build, is_there
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging.exact import (
    find_unlike,
    inexact_columns,
    say_retyping,
    unlike,
)
from airflow_parallel_apply.pipeline.target.postgres.staging.narrow import narrow_columns, too_long

_PIPELINED: Final = 500
_SHOWN_LETTERS: Final = 200
_EVENTS: Final = {Operation.INSERT: INSERT, Operation.DELETE: DELETE}

_COLUMNS: Final = ("seqno", "relation_id", "operation", "values", "unsent", "old_key")


class Replayer:
    """Replays rows inside the caller's transaction."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        *,
        relations: Callable[[int], Relation],
        reinserting: Reinserting,
        beside: SideWrites,
    ) -> None:
        self._connection = connection
        self._session = session
        self._relations = relations
        self._reinserting = reinserting
        self._beside = beside
        self._tables: dict[int, TargetTable] = {}
        self._narrow: dict[int, Mapping[int, int]] = {}
        self._inexact: dict[int, tuple[int, ...]] = {}
        self._watched: set[int] = set()
        """Relations whose rows triggers may change. Rules cannot be asked for the row, and change how many there are.
        """
        self._statements: dict[tuple[int, Operation, str, bool, bool, bool], bytes] = {}
        self._cascades = Cascades()
        self._knows_keys = False

    def forget_tables(self) -> None:
        """They may be others from here on; the transaction under way is the same."""
        self._tables.clear()
        self._statements.clear()
        self._knows_keys = False

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Rows in (seqno, fragno) order. Errors: `TargetError` that names table, seqno and key; psycopg's own."""
        self._beside.begin(list(self._tables.values()))
        for batch in batches:
            columns = [batch.column(name) for name in _COLUMNS]
            for start in range(0, batch.num_rows, _PIPELINED):
                self._describe(batch.column("relation_id").slice(start, _PIPELINED).unique().to_pylist())
                rows = zip(*(column.slice(start, _PIPELINED).to_pylist() for column in columns), strict=True)
                self._run_some(rows)
        self._beside.require_none()

    def _run_some(self, rows: Iterator[tuple[Any, ...]]) -> None:
        ready: list[Change] = []
        if not self._knows_keys:
            self._cascades.learn(find_acting_keys(self._connection))
            self._knows_keys = True
        for seqno, relation_id, letter, values, unsent, old_key in rows:
            operation = Operation(letter)
            if operation is Operation.KEY_LEFT:
                continue
            if not operation.is_row:
                raise LogError(f"operation {letter} among the rows to replay", seqno=seqno)
            table = self._table(relation_id)
            reached = self._cascades.reach(table.oid, seqno, operation)
            row = values_of(values) if table.relation.columns else []
            left = None if old_key is None else values_of(old_key)
            ready.append(Change(table, operation, seqno, row, unsent or "", left, reached))
        self._require_exact(ready)
        sent: list[Sent] = []
        try:
            with self._connection.pipeline():
                sent.extend(self._send(change) for change in ready)
        except psycopg.Error as error:
            raise _located(error, sent) from error
        for one in sent:
            self._beside.count(self._table(one.relation.relation_id), one.written)
        for one in sent:
            if one.cursor.rowcount != 1 and not (one.may_be_done and one.cursor.rowcount == 0):
                self._beside.explain_missing()
                raise self._unlike(one).at(seqno=one.seqno)
            if one.cursor.rowcount == 1 and one.cursor.description and one.cursor.fetchone() == (False,):
                raise self._changed(one).at(seqno=one.seqno)

    def _require_exact(self, changes: Sequence[Change]) -> None:
        """Require of columns whose type is not the source's that they print the texts that come."""
        texts: dict[tuple[int, int], dict[str, Change]] = {}
        for change in changes:
            relation_id = change.table.relation.relation_id
            for index in self._inexact[relation_id]:
                found = texts.setdefault((relation_id, index), {})
                for text in change.texts(index):
                    found.setdefault(text, change)
        for (relation_id, index), found in texts.items():
            odd = find_unlike(self._connection, self._table(relation_id), index, list(found))
            if odd is not None:
                raise _odd(found[odd[0]], index, *odd)

    def _unlike(self, one: Sent) -> ParallelApplyError:
        """Say why a statement did not change exactly one row."""
        table = self._table(one.relation.relation_id)
        event = _EVENTS.get(one.operation, UPDATE)
        if event == INSERT or self._is_passed_over(one, table, event):
            return turned_away(
                self._connection,
                table,
                event,
                expected=1,
                found=one.cursor.rowcount,
                as_replica=self._reinserting.as_replica,
            )
        if one.relation.by_image:
            return missing_images(table, 1, [_row_text(one.key)])
        return self._missing(one)

    def _is_passed_over(self, one: Sent, table: TargetTable, event: str) -> bool:
        """True if an update or deletion changed no row, and its row is there."""
        # A row with a fixed column is looked for by that, too: it may be there and have another value in it.
        may_differ = event == UPDATE and table.fixed
        return one.cursor.rowcount == 0 and not may_differ and self._is_there(table, one.key)

    def _changed(self, one: Sent) -> TargetError:
        table = self._table(one.relation.relation_id)
        names = one.relation.key_names
        row = f": {key_text(names, one.key)}" if names else ""
        return changed_rows(self._connection, table, row=row, as_replica=self._reinserting.as_replica)

    def _is_there(self, table: TargetTable, key: Sequence[object]) -> bool:
        return psycopg.RawCursor(self._connection).execute(is_there(table), list(key)).fetchone() is not None

    def _missing(self, one: Sent) -> TargetError:
        names = one.relation.key_names
        table = self._table(one.relation.relation_id)
        hint = rows_differ(table)
        if one.cursor.rowcount == 0 and table.fixed and self._is_there(table, one.key):
            column = table.fixed[0]
            hint = (
                f"The row is there, but has another value in {column}, which is GENERATED ALWAYS AS IDENTITY here, or "
                f"is turned away. {by_default_hint(table, column)}; then run again."
            )
        return TargetError(
            f"{one.cursor.rowcount} rows found to change: {key_text(names, one.key)}",
            table=one.relation.name,
            seqno=one.seqno,
            hint=hint,
        )

    def _send(self, change: Change) -> Sent:
        table, operation, seqno, values, unsent = (
            change.table, change.operation, change.seqno, change.values, change.unsent
        )  # fmt: skip
        old_key, reached = change.old_key, change.reached
        relation = table.relation
        for index, length in self._narrow.get(relation.relation_id, {}).items():
            value = values[index] if index < len(values) else None
            if operation is not Operation.DELETE and value is not None and len(value) > length:
                raise too_long(table, index).at(seqno=seqno)
        new_key = [values[index] for index in relation.key_indexes] if relation.key_indexes else list(values)
        key = list(old_key or ()) if operation is Operation.KEY_ARRIVED else new_key
        reinserts = self._reinserts(table, operation, seqno, values, old_key)
        kept = [index for index in _written(table, operation, reinserts=reinserts) if unsent[index : index + 1] != "1"]
        match operation:
            case Operation.INSERT:
                parameters = [values[index] for index in kept]
            case Operation.DELETE:
                parameters = list(key)
            case _:
                parameters = [*(values[index] for index in kept), *key]
        at_new_key = reached.done and operation is Operation.KEY_ARRIVED and bool(relation.key_indexes)
        if at_new_key:
            parameters += new_key
        if not reinserts and not relation.by_image and operation in (Operation.UPDATE, Operation.KEY_ARRIVED):
            parameters += [values[index] for index, column in enumerate(relation.columns) if column.name in table.fixed]
        cursor = psycopg.RawCursor(self._connection)
        place = (relation.relation_id, operation, unsent, at_new_key, reinserts, bool(reached.between))
        if place not in self._statements:
            statement = build(
                table,
                operation,
                kept,
                at_new_key=at_new_key,
                reinserts=reinserts,
                between=reached.between,
                watched=relation.relation_id in self._watched,
            )
            self._statements[place] = statement.as_bytes(self._connection)
        cursor.execute(self._statements[place], parameters)
        # A row that has its new key already is found by that, but for one that is between two of its key's references.
        in_key = sum(any(table.is_key(column) for column in key.columns) for key in reached.between)
        may_be_done = reached.done and (not at_new_key or in_key > 1)
        return Sent(cursor, operation, relation, seqno, tuple(key), may_be_done, reinserts)

    def _reinserts(
        self,
        table: TargetTable,
        operation: Operation,
        seqno: int,
        values: Sequence[str | None],
        old_key: Sequence[str | None] | None,
    ) -> bool:
        """True if a change concerns, or may concern, a column that takes values from insertions alone. Errors:
        `TargetError` where it may not be done as a deletion and an insertion.
        """
        if operation not in (Operation.UPDATE, Operation.KEY_ARRIVED):
            return False
        relation = table.relation
        sent = relation.key_indexes or (range(len(relation.columns)) if relation.by_image else ())
        old = dict(zip(sent, old_key or (), strict=False))
        for index, column in enumerate(relation.columns):
            if not table.columns[column.name].identity_always or (column.key and index not in old):
                continue
            is_sent = index in old
            if is_sent and old[index] == values[index]:
                continue
            if not is_sent and not self._reinserting.may_reinsert(table):
                continue
            if not self._reinserting.may_reinsert(table):
                raise fixed_column(table, column.name).at(seqno=seqno)
            return True
        return False

    def _has_triggers(self, table: TargetTable) -> bool:
        as_replica = self._reinserting.as_replica
        if not table.is_guarded(as_replica=as_replica):
            return False
        guards = find_guards(self._connection, table, (INSERT, UPDATE), as_replica=as_replica, also_after=True)
        return any(guard.kind == TRIGGER for guard in guards)

    def _table(self, relation_id: int) -> TargetTable:
        return self._tables[relation_id]

    def _describe(self, relation_ids: Iterable[int]) -> None:
        """Before the protocol's pipeline opens: there, what is asked of the catalog waits for the answer."""
        new = [self._relations(number) for number in relation_ids if number >= 0 and number not in self._tables]
        if new:
            tables = hold_applied(self._connection, new, pipeline=self._session.pipeline)
            require_own_columns(self._connection, self._session, tables)
            require_computed_alike(self._connection, tables)
            self._beside.begin(tables)
            self._watched.update(table.relation.relation_id for table in tables if self._has_triggers(table))
            self._tables.update(zip((relation.relation_id for relation in new), tables, strict=True))
            self._narrow.update((table.relation.relation_id, narrow_columns(table)) for table in tables)
            self._inexact.update((table.relation.relation_id, inexact_columns(table)) for table in tables)


def _written(table: TargetTable, operation: Operation, *, reinserts: bool) -> list[int]:
    """Indexes of the columns that a statement may write."""
    columns = [table.columns[column.name] for column in table.relation.columns]
    return [
        index
        for index, column in enumerate(columns)
        if not column.generated and (reinserts or operation is Operation.INSERT or not column.identity_always)
    ]


def _odd(change: Change, index: int, text: str, refusal: psycopg.Error | None) -> ParallelApplyError:
    """The error for a value that the target's column does not take as it is."""
    relation = change.table.relation
    key = [change.values[place] for place in relation.key_indexes]
    if refusal is None:
        return unlike(change.table, index, key=key, text=text).at(seqno=change.seqno)
    found = translate(refusal, op="replay", table=relation.name)
    found.column = relation.columns[index].name
    say_retyping(found, refusal, change.table)
    say_label(found, refusal, relation)
    if key:
        found.message += f" (row {key_text([relation.columns[place].name for place in relation.key_indexes], key)})"
    return found.at(seqno=change.seqno)


def _row_text(values: Sequence[object]) -> str:
    return str(tuple(values))[:_SHOWN_LETTERS]


def _located(error: psycopg.Error, sent: Sequence[Sent]) -> Exception:
    """The first statement without a result is the one that failed; the server skips those behind it."""
    found = translate(error, op="replay")
    for one in sent:
        if one.cursor.rowcount < 0:
            found.table = found.table or one.relation.name
            found.seqno = one.seqno
            say_label(found, error, one.relation)
            names = one.relation.key_names
            if names:
                found.message += f" (row {key_text(names, one.key)})"
            break
    return found
