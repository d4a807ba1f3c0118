"""Exact replay: change by change in source order. Slower than a merge, and right whatever the constraints are.

Values go as text of unknown type, so that the server reads them by its columns' own input functions, as COPY does.
Statements are sent through the protocol's pipeline, some hundreds at a time, with the server's own parameter marks: a
name may hold any character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import LogError, TargetError
from airflow_parallel_apply.pipeline.event import Operation, Relation
from airflow_parallel_apply.pipeline.line import values_of
from airflow_parallel_apply.pipeline.target.postgres.cascades import ActingKey, Cascades, Reached, find_acting_keys
from airflow_parallel_apply.pipeline.target.postgres.diagnosis import translate
from airflow_parallel_apply.pipeline.target.postgres.merge import key_text, turned_away
from airflow_parallel_apply.pipeline.target.postgres.moving import Moving, fixed_column
from airflow_parallel_apply.pipeline.target.postgres.multiset import image, missing_images
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.tables import TargetTable, describe_tables

_PIPELINED: Final = 500
_SHOWN_LETTERS: Final = 200

_COLUMNS: Final = ("seqno", "relation_id", "operation", "values", "unsent", "old_key")


@dataclass(frozen=True, slots=True)
class _Sent:
    """A statement on its way, and what to say if it finds no row."""

    cursor: psycopg.RawCursor[Any]
    operation: Operation
    relation: Relation
    seqno: int
    key: tuple[object, ...]
    may_be_done: bool
    """Whether the target's own foreign keys may have done it (see `Cascades`)."""


class Replay:
    """Replays rows inside the caller's transaction."""

    def __init__(
        self, connection: Connection, *, schema: str, relations: Callable[[int], Relation], moving: Moving
    ) -> None:
        self._connection = connection
        self._schema = schema
        self._relations = relations
        self._moving = moving
        self._tables: dict[int, TargetTable] = {}
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
        for batch in batches:
            columns = [batch.column(name) for name in _COLUMNS]
            for start in range(0, batch.num_rows, _PIPELINED):
                self._describe(batch.column("relation_id").slice(start, _PIPELINED).unique().to_pylist())
                rows = zip(*(column.slice(start, _PIPELINED).to_pylist() for column in columns), strict=True)
                self._run_some(rows)

    def _run_some(self, rows: Iterator[tuple[Any, ...]]) -> None:
        ready = []
        if not self._knows_keys:
            self._cascades.learn(find_acting_keys(self._connection, schema=self._schema))
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
            ready.append((table, operation, seqno, row, unsent or "", left, reached))
        sent: list[_Sent] = []
        try:
            with self._connection.pipeline():
                sent.extend(self._send(*row) for row in ready)
        except psycopg.Error as error:
            raise _located(error, sent) from error
        for one in sent:
            if one.cursor.rowcount != 1 and not (one.may_be_done and one.cursor.rowcount == 0):
                if one.operation is Operation.INSERT:
                    raise turned_away(one.relation.name, 1, one.cursor.rowcount).at(seqno=one.seqno)
                if one.relation.by_image:
                    found = missing_images(self._table(one.relation.relation_id), 1, [_row_text(one.key)])
                    raise found.at(seqno=one.seqno)
                raise self._missing(one)

    def _missing(self, one: _Sent) -> TargetError:
        names = [column.name for column in one.relation.columns if column.key]
        hint = "Somebody else changed the target, or the copies differed at the start."
        for column in self._table(one.relation.relation_id).fixed:
            hint += f" Or {column}, which is GENERATED ALWAYS here, changed at the source: make it BY DEFAULT."
        return TargetError(
            f"{one.cursor.rowcount} rows found to change: {key_text(names, one.key)}",
            table=one.relation.name,
            seqno=one.seqno,
            hint=hint,
        )

    def _send(
        self,
        table: TargetTable,
        operation: Operation,
        seqno: int,
        values: Sequence[str | None],
        unsent: str,
        old_key: Sequence[str | None] | None,
        reached: Reached,
    ) -> _Sent:
        relation = table.relation
        new_key = [values[index] for index in relation.key_indexes] if relation.key_indexes else list(values)
        key = list(old_key or ()) if operation is Operation.KEY_ARRIVED else new_key
        moves = self._moves(table, operation, seqno, values, old_key)
        kept = [index for index in _written(table, operation, moves=moves) if unsent[index : index + 1] != "1"]
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
        if not moves and not relation.by_image and operation in (Operation.UPDATE, Operation.KEY_ARRIVED):
            parameters += [values[index] for index, column in enumerate(relation.columns) if column.name in table.fixed]
        cursor = psycopg.RawCursor(self._connection)
        place = (relation.relation_id, operation, unsent, at_new_key, moves, bool(reached.between))
        if place not in self._statements:
            statement = _build(table, operation, kept, at_new_key=at_new_key, moves=moves, between=reached.between)
            self._statements[place] = statement.as_bytes(self._connection)
        cursor.execute(self._statements[place], parameters)
        # A row that has its new key already is found by that, but for one that is between two of its key's references.
        in_key = sum(any(table.is_key(column) for column in key.columns) for key in reached.between)
        return _Sent(cursor, operation, relation, seqno, tuple(key), reached.done and (not at_new_key or in_key > 1))

    def _moves(
        self,
        table: TargetTable,
        operation: Operation,
        seqno: int,
        values: Sequence[str | None],
        old_key: Sequence[str | None] | None,
    ) -> bool:
        """Whether a change is, or may be, one of a column that takes a value from insertions alone. Errors:
        `TargetError` where it may not be done as a deletion and an insertion.
        """
        if operation not in (Operation.UPDATE, Operation.KEY_ARRIVED):
            return False
        relation = table.relation
        told = relation.key_indexes or (range(len(relation.columns)) if relation.by_image else ())
        old = dict(zip(told, old_key or (), strict=False))
        for index, column in enumerate(relation.columns):
            if not table.columns[column.name].identity_always or (column.key and index not in old):
                continue
            is_told = index in old
            if is_told and old[index] == values[index]:
                continue
            if not is_told and not self._moving.may_move(table):
                continue
            if not self._moving.may_move(table):
                raise fixed_column(table, column.name).at(seqno=seqno)
            return True
        return False

    def _table(self, relation_id: int) -> TargetTable:
        return self._tables[relation_id]

    def _describe(self, relation_ids: Iterable[int]) -> None:
        """Before the protocol's pipeline opens: there, what is asked of the catalog waits for the answer."""
        new = [self._relations(number) for number in relation_ids if number >= 0 and number not in self._tables]
        if new:
            tables = describe_tables(self._connection, new, schema=self._schema)
            self._tables.update(zip((relation.relation_id for relation in new), tables, strict=True))


def _written(table: TargetTable, operation: Operation, *, moves: bool) -> list[int]:
    """Indexes of the columns that a statement may write."""
    columns = [table.columns[column.name] for column in table.relation.columns]
    return [
        index
        for index, column in enumerate(columns)
        if not column.generated and (moves or operation is Operation.INSERT or not column.identity_always)
    ]


def _build(
    table: TargetTable,
    operation: Operation,
    kept: Sequence[int],
    *,
    at_new_key: bool,
    moves: bool,
    between: Sequence[ActingKey],
) -> sql.Composed:
    """`at_new_key`: the row may have its new key already, and then is the one to update. `moves`: delete, insert it.
    `between`: references that are passed over where they name nothing.
    """
    columns = [sql.Identifier(table.relation.columns[index].name) for index in kept]
    marks = (sql.SQL(f"${number}") for number in count(1))
    if operation is Operation.INSERT:
        return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
            table.identifier, sql.SQL(", ").join(columns), sql.SQL(", ").join(islice(marks, len(columns)))
        )
    final: dict[str, sql.Composable] = {}
    if moves:
        final.update(
            (name, sql.Identifier("t", name)) for name, column in table.columns.items() if not column.generated
        )
        sent = [table.relation.columns[index].name for index in kept]
        final.update((name, _typed(table, name, marks)) for name in sent)
    values = []
    if operation is not Operation.DELETE and not moves:
        given = {table.relation.columns[index].name: next(marks) for index in kept}
        values = [
            sql.SQL("{} = {}").format(sql.Identifier(name), _unless_nothing(table, name, given, between))
            for name in given
        ]
    if table.relation.by_image:
        return _build_image(table, values, final, marks)
    operators = table.key_operators()
    names = [column.name for column in table.relation.columns if column.key]

    def has_key() -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("{} {} {}").format(sql.Identifier(name), operators[name], _typed(table, name, marks))
            for name in names
        )

    same = has_key()
    if operation is Operation.DELETE:
        return sql.SQL("DELETE FROM {} WHERE {}").format(table.own_rows, same)
    if moves:
        return _moved(table, sql.SQL("DELETE FROM {} AS t WHERE {}").format(table.own_rows, same), final)
    if at_new_key:
        same = sql.SQL("({new}) OR (({old}) AND NOT EXISTS (SELECT FROM {table} WHERE {new}))").format(
            new=has_key(), old=same, table=table.own_rows
        )
    if not values:
        first = sql.Identifier(names[0])
        values = [sql.SQL("{} = {}").format(first, first)]
    for name in table.fixed:
        # It may not be moved, so it must have the value that it is to have.
        same += sql.SQL(" AND {} = {}").format(sql.Identifier(name), _typed(table, name, marks))
    return sql.SQL("UPDATE {} AS t SET {} WHERE {}").format(table.own_rows, sql.SQL(", ").join(values), same)


def _unless_nothing(
    table: TargetTable, column: str, given: Mapping[str, sql.SQL], between: Sequence[ActingKey]
) -> sql.Composable:
    """The value given to a column, or its own in a row that this transaction changed, if it refers to nothing."""
    tests = []
    for key in between:
        if column in key.columns and given.keys() >= set(key.columns):
            values = [
                sql.SQL("{}::{}").format(given[name], sql.SQL(table.columns[name].type_sql)) for name in key.columns
            ]
            same = [
                sql.SQL("p.{} {} {}").format(sql.Identifier(name), sql.SQL(operator), value)
                for name, operator, value in zip(key.referenced, key.operators, values, strict=True)
            ]
            tests.append(
                sql.SQL("({} OR EXISTS (SELECT FROM {} AS p WHERE {}))").format(
                    sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(value) for value in values),
                    sql.SQL(key.parent_name),
                    sql.SQL(" AND ").join(same),
                )
            )
    if not tests:
        return given[column]
    return sql.SQL("CASE WHEN t.xmin <> pg_current_xact_id()::xid OR {} THEN {}::{} ELSE t.{} END").format(
        sql.SQL(" AND ").join(tests), given[column], sql.SQL(table.columns[column].type_sql), sql.Identifier(column)
    )


def _moved(table: TargetTable, deletion: sql.Composed, final: Mapping[str, sql.Composable]) -> sql.Composed:
    """A row deleted and inserted in its final form, in one statement that counts what it inserts."""
    return sql.SQL(
        "WITH gone AS ({deletion} RETURNING {final}) INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE"
        " SELECT * FROM gone"
    ).format(
        deletion=deletion,
        final=sql.SQL(", ").join(final.values()),
        table=table.identifier,
        names=sql.SQL(", ").join(sql.Identifier(name) for name in final),
    )


def _build_image(
    table: TargetTable,
    values: Sequence[sql.Composed],
    final: Mapping[str, sql.Composable],
    marks: Iterator[sql.SQL],
) -> sql.Composed:
    """Change, move to its `final` form, or without either delete one of the rows that have an image: whichever comes
    first.
    """
    wanted = sql.SQL(", ").join(_typed(table, column.name, marks) for column in table.relation.columns)
    one = sql.SQL(
        "(SELECT t.tableoid, t.ctid FROM {rows} AS t WHERE {image} = ROW({wanted})::text LIMIT 1) AS one"
        " WHERE t.tableoid = one.tableoid AND t.ctid = one.ctid"
    ).format(rows=table.own_rows, image=image(table, "t"), wanted=wanted)
    if not values:
        deletion = sql.SQL("DELETE FROM {} AS t USING {}").format(table.own_rows, one)
        return _moved(table, deletion, final) if final else deletion
    return sql.SQL("UPDATE {} AS t SET {} FROM {}").format(table.own_rows, sql.SQL(", ").join(values), one)


def _typed(table: TargetTable, column: str, marks: Iterator[sql.SQL]) -> sql.Composed:
    """A value that is compared: an operator alone would not tell the type of each."""
    return sql.SQL("{}::{}").format(next(marks), sql.SQL(table.columns[column].type_sql))


def _row_text(values: Sequence[object]) -> str:
    return str(tuple(values))[:_SHOWN_LETTERS]


def _located(error: psycopg.Error, sent: Sequence[_Sent]) -> Exception:
    """The first statement without a result is the one that failed; the server skips those behind it."""
    found = translate(error, op="replay")
    for one in sent:
        if one.cursor.rowcount < 0:
            found.table = found.table or one.relation.name
            found.seqno = one.seqno
            break
    return found
