"""A shard expression over a table's columns, in Arrow and as Spark SQL: one meaning, two notations.

The contract test evaluates both over random values. Texts are the log's; of equal values they are made equal first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.copy_text import ESCAPES, NULL, PLACEHOLDER, SEPARATOR
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.partition.expression import (
    ColumnText,
    Concatenation,
    Expression,
    Left,
    Literal,
    Remainder,
    SplitPart,
    columns_of,
    remainder_columns,
)
from airflow_parallel_apply.pipeline.partition.key import canonical

_COLLATED: Final = (KeyKind.TEXT, KeyKind.BLANK_PADDED)


def unusable(expression: Expression, relation: Relation) -> str | None:
    """Say why a table's rows have no shard by this expression; None if they have.

    A key's columns decide alone, where there is a key: a delete carries no others, and an update that changed another
    one would change the channel of its key unseen (laws 1, 2).
    """
    columns = {column.name: column for column in relation.columns}
    for name in columns_of(expression):
        if name not in columns:
            return f"has no column {name}"
        kind = columns[name].kind
        if kind is KeyKind.NOT_CANONICAL:
            return f"has {name} of type {columns[name].type_name}, of which equal values may have several texts"
        if relation.key_indexes and not columns[name].key:
            return f"has {name} outside of its key"
        if kind in _COLLATED and not relation.canonical:
            return f"has {name} in a key that may compare texts otherwise than by their bytes"
    for name in remainder_columns(expression):
        if columns[name].kind is not KeyKind.INTEGER:
            return f"has {name} of type {columns[name].type_name}, and % takes integers"
    return None


def in_arrow(expression: Expression, relation: Relation, column: Callable[[int], pa.StringArray]) -> pa.StringArray:
    """The shards of rows of one relation. `column`: the texts of a column by its index."""
    places = {found.name: index for index, found in enumerate(relation.columns)}

    def value(part: Expression) -> pa.Array | pa.Scalar:
        match part:
            case ColumnText(name=name):
                return canonical(relation.columns[places[name]].kind, column(places[name]))
            case Literal(text=text):
                return pa.scalar(text)
            case Remainder(column=of, divisor=divisor):
                numbers = column(places[of.name]).cast(pa.int64())
                remainders = np.fmod(numbers.fill_null(0).to_numpy(), divisor)
                return pc.if_else(numbers.is_valid(), pa.array(remainders).cast(pa.string()), None)
            case Left(of=of, count=count):
                return pc.utf8_slice_codeunits(value(of), 0, count)
            case SplitPart(of=of, separator=separator, number=number):
                parts = pc.split_pattern(value(of), separator)
                return pc.binary_join(pc.list_slice(parts, number - 1, number), "")
            case Concatenation(parts=parts):
                return pc.binary_join_element_wise(*(value(one) for one in parts), "")

    return value(expression)


def in_sql(expression: Expression, relation: Relation) -> str:
    """Spark SQL over the log's columns, for rows of one relation."""
    places = {found.name: index for index, found in enumerate(relation.columns)}

    def value(part: Expression) -> str:
        match part:
            case ColumnText(name=name):
                text = _column_sql(places[name])
                return _canonical_sql(relation.columns[places[name]].kind, text)
            case Literal(text=text):
                return text_sql(text)
            case Remainder(column=of, divisor=divisor):
                return f"cast(try_cast({_column_sql(places[of.name])} AS bigint) % {divisor}L AS string)"
            case Left(of=of, count=count):
                return f"substring({value(of)}, 1, {count})"
            case SplitPart(of=of, separator=separator, number=number):
                return f"split_part({value(of)}, {text_sql(separator)}, {number})"
            case Concatenation(parts=parts):
                return f"concat({', '.join(value(one) for one in parts)})"

    return value(expression)


def text_sql(text: str) -> str:
    """A literal that no parser setting of the session reads otherwise."""
    return f"decode(X'{text.encode().hex()}', 'UTF-8')"


def _column_sql(index: int) -> str:
    text = f"split_part(`values`, {text_sql(SEPARATOR)}, {index + 1})"
    (backslash, escaped_backslash), *others = ESCAPES
    plain = _replaced(text, escaped_backslash, PLACEHOLDER)
    for one, escaped in others:
        plain = _replaced(plain, escaped, one)
    plain = _replaced(plain, PLACEHOLDER, backslash)
    return (
        f"CASE WHEN {text} = {text_sql(NULL)} THEN NULL"
        f" WHEN contains({text}, {text_sql(backslash)}) THEN {plain} ELSE {text} END"
    )


def _replaced(text: str, old: str, new: str) -> str:
    return f"replace({text}, {text_sql(old)}, {text_sql(new)})"


def _canonical_sql(kind: KeyKind, text: str) -> str:
    """`key.canonical` in Spark's words."""
    match kind:
        case KeyKind.DECIMAL:
            trimmed = f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM {text}))"
            return f"CASE WHEN contains({text}, '.') THEN {trimmed} ELSE {text} END"
        case KeyKind.FLOAT:
            return f"CASE WHEN {text} = '-0' THEN '0' ELSE {text} END"
        case KeyKind.BLANK_PADDED:
            return f"trim(TRAILING ' ' FROM {text})"
        case _:
            return text
