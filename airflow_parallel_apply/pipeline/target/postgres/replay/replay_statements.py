"""The statements of a replay: one change of one row, with the server's own parameter marks.

Values go as text of unknown type, so that the server reads them by its columns' own input functions, as COPY does, and
assigns them: nothing is cast to what would cut it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice

from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Operation
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.merge.cascades import ActingKey
from airflow_parallel_apply.pipeline.target.postgres.merge.multiset import image


def build(
    table: TargetTable,
    operation: Operation,
    kept: Sequence[int],
    *,
    at_new_key: bool,
    reinserts: bool,
    between: Sequence[ActingKey],
    watched: bool,
) -> sql.Composed:
    """The statement of one change, which writes the columns `kept`.

    `at_new_key`: the row may have its new key already, and then is the one to update. `reinserts`: delete, insert it.
    `between`: references that are passed over where they name nothing. `watched`: it returns whether the row then has
    what was written.
    """
    built = _build(table, operation, kept, at_new_key=at_new_key, reinserts=reinserts, between=between)
    if not watched or not returns_row(operation, kept, between=between):
        return built
    left = {name for key in between for name in key.columns}
    written = [(table.relation.columns[index].name, sql.SQL(f"${number}")) for number, index in enumerate(kept, 1)]
    compared = [(name, mark) for name, mark in written if name not in left]
    stored = sql.SQL(", ").join(sql.Identifier("t", name) for name, _ in compared)
    sent = sql.SQL(", ").join(_as_stored(table, name, iter([mark])) for name, mark in compared)
    kept_as_they_are = [] if at_new_key or reinserts or operation is Operation.INSERT else _unsent(table, kept)
    if not kept_as_they_are:
        return sql.SQL("{} RETURNING ROW({})::text = ROW({})::text").format(built, stored, sent)
    before = sql.SQL(", ").join(sql.Identifier("t", name) for name in kept_as_they_are)
    return sql.SQL(
        "WITH before AS (SELECT ROW({before})::text AS image FROM {rows} AS t WHERE {same}) {built}"
        " RETURNING ROW({stored})::text = ROW({sent})::text"
        " AND ROW({before})::text IN (SELECT image FROM before)"
    ).format(
        before=before,
        rows=table.own_rows,
        same=found_by(table, (sql.SQL(f"${number}") for number in count(len(kept) + 1))),
        built=built,
        stored=stored,
        sent=sent,
    )


def returns_row(operation: Operation, kept: Sequence[int], *, between: Sequence[ActingKey]) -> bool:
    """True if a watched statement of this form has something to compare."""
    left = sum(len(key.columns) for key in between)
    return operation is not Operation.DELETE and len(kept) > left


def _unsent(table: TargetTable, kept: Sequence[int]) -> list[str]:
    """Columns that an update leaves as they are, since they did not come."""
    if table.relation.by_image:
        return []
    return [
        column.name
        for index, column in enumerate(table.relation.columns)
        if index not in kept and not column.key and not table.columns[column.name].generated
    ]


def _build(
    table: TargetTable,
    operation: Operation,
    kept: Sequence[int],
    *,
    at_new_key: bool,
    reinserts: bool,
    between: Sequence[ActingKey],
) -> sql.Composed:
    columns = [sql.Identifier(table.relation.columns[index].name) for index in kept]
    marks = (sql.SQL(f"${number}") for number in count(1))
    if operation is Operation.INSERT:
        return sql.SQL("INSERT INTO {} AS t ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(
            table.identifier, sql.SQL(", ").join(columns), sql.SQL(", ").join(islice(marks, len(columns)))
        )
    final: dict[str, sql.Composable] = {}
    if reinserts:
        final.update(
            (name, sql.Identifier("t", name)) for name, column in table.columns.items() if not column.generated
        )
        sent = [table.relation.columns[index].name for index in kept]
        final.update((name, _typed(table, name, marks)) for name in sent)
    values = []
    if operation is not Operation.DELETE and not reinserts:
        given = {table.relation.columns[index].name: next(marks) for index in kept}
        values = [
            sql.SQL("{} = {}").format(sql.Identifier(name), _unless_nothing(table, name, given, between))
            for name in given
        ]
    if table.relation.by_image:
        return _build_image(table, values, final, marks)
    same = found_by(table, marks)
    if operation is Operation.DELETE:
        return sql.SQL("DELETE FROM {} WHERE {}").format(table.own_rows, same)
    if reinserts:
        return _reinsertion(table, sql.SQL("DELETE FROM {} AS t WHERE {}").format(table.own_rows, same), final)
    if at_new_key:
        same = sql.SQL("({new}) OR (({old}) AND NOT EXISTS (SELECT FROM {table} WHERE {new}))").format(
            new=found_by(table, marks), old=same, table=table.own_rows
        )
    if not values:
        first = sql.Identifier(table.relation.key_names[0])
        values = [sql.SQL("{} = {}").format(first, first)]
    for name in table.fixed:
        # It may not be inserted anew, so it must have the value that it is to have.
        same += sql.SQL(" AND {} = {}").format(sql.Identifier(name), _typed(table, name, marks))
    return sql.SQL("UPDATE {} AS t SET {} WHERE {}").format(table.own_rows, sql.SQL(", ").join(values), same)


def found_by(table: TargetTable, marks: Iterator[sql.SQL]) -> sql.Composed:
    """The condition that a row `t` has a key, or where all its values are the key, an image."""
    if table.relation.by_image:
        wanted = sql.SQL(", ").join(_as_stored(table, column.name, marks) for column in table.relation.columns)
        return sql.SQL("{} = ROW({})::text").format(image(table, "t"), wanted)
    operators = table.key_operators()
    return sql.SQL(" AND ").join(
        sql.SQL("{} {} {}").format(sql.Identifier(name), operators[name], _typed(table, name, marks))
        for name in table.relation.key_names
    )


def is_there(table: TargetTable) -> sql.Composed:
    """A query that has a row where a key, or an image, is in the table."""
    marks = (sql.SQL(f"${number}") for number in count(1))
    return sql.SQL("SELECT FROM {} AS t WHERE {} LIMIT 1").format(table.own_rows, found_by(table, marks))


def _unless_nothing(
    table: TargetTable, column: str, given: Mapping[str, sql.SQL], between: Sequence[ActingKey]
) -> sql.Composable:
    """The value given to a column, or its own in a row that this transaction changed, if it refers to nothing."""
    tests = []
    for key in between:
        if column in key.columns and given.keys() >= set(key.columns):
            values = [
                sql.SQL("{}::{}").format(given[name], sql.SQL(table.columns[name].plain_type_sql))
                for name in key.columns
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
        sql.SQL(" AND ").join(tests),
        given[column],
        sql.SQL(table.columns[column].plain_type_sql),
        sql.Identifier(column),
    )


def _reinsertion(table: TargetTable, deletion: sql.Composed, final: Mapping[str, sql.Composable]) -> sql.Composed:
    """A row deleted and inserted in its final form, in one statement that counts what it inserts."""
    return sql.SQL(
        "WITH gone AS ({deletion} RETURNING {final}) INSERT INTO {table} AS t ({names}) OVERRIDING SYSTEM VALUE"
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
    """Change, insert anew in its `final` form, or without either delete one of the rows that have an image: whichever
    comes first.
    """
    one = sql.SQL(
        "(SELECT t.tableoid, t.ctid FROM {rows} AS t WHERE {same} LIMIT 1) AS one"
        " WHERE t.tableoid = one.tableoid AND t.ctid = one.ctid"
    ).format(rows=table.own_rows, same=found_by(table, marks))
    if not values:
        deletion = sql.SQL("DELETE FROM {} AS t USING {}").format(table.own_rows, one)
        return _reinsertion(table, deletion, final) if final else deletion
    return sql.SQL("UPDATE {} AS t SET {} FROM {}").format(table.own_rows, sql.SQL(", ").join(values), one)


def _typed(table: TargetTable, column: str, marks: Iterator[sql.SQL]) -> sql.Composed:
    """A value that is compared, or assigned later: an operator alone would not tell the type of each."""
    return sql.SQL("{}::{}").format(next(marks), sql.SQL(table.columns[column].plain_type_sql))


def _as_stored(table: TargetTable, column: str, marks: Iterator[sql.SQL]) -> sql.Composed:
    """A value whose text is compared: rounded and padded as the column does it, and never cut."""
    found = table.columns[column]
    if found.type_sql.startswith("character(") and not found.type_sql.endswith("]"):
        mark = next(marks)
        width = sql.SQL(found.type_sql.removeprefix("character("))
        return sql.SQL("rpad({mark}::text, greatest(char_length({mark}::text), {width})::bpchar").format(
            mark=mark, width=width
        )
    is_cut = found.type_sql.startswith(("character", "bit"))
    return sql.SQL("{}::{}").format(next(marks), sql.SQL(found.plain_type_sql if is_cut else found.type_sql))
