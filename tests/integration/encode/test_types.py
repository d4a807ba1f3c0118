"""A real server's own texts of every type: typed columns are exact, everything else is text and is named."""

from __future__ import annotations

from typing import Final

import psycopg
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.encode.columns.parse import Unfit, parse
from airflow_parallel_apply.pipeline.encode.columns.texts import texts
from airflow_parallel_apply.pipeline.encode.columns.types import arrow_type
from airflow_parallel_apply.pipeline.model.value_type import OPAQUE, ValueKind, ValueType
from airflow_parallel_apply.pipeline.source.postgres.catalog.value_types import value_type
from airflow_parallel_apply.postgres.settings import EXACT
from tests.support.type_values import ARRAYS, MADE, VALUES

_TYPED: Final = {
    "smallint", "integer", "bigint", "oid", "numeric(8,3)", "real", "double precision", "text", "varchar(12)",
    "char(5)", "bpchar", "name", '"char"', "bytea", "boolean", "date", "time", "time(2)", "timestamp", "timestamptz",
    "uuid", "json", "jsonb", "mood", "below_ten",
}  # fmt: skip
"""Types whose values have an Arrow type; the others keep their text."""

_UNFIT: Final = {
    "date": {"0044-03-15 BC", "infinity", "5874897-12-31"},
    "time": {"24:00:00"},
    "timestamp": {"infinity", "4713-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999"},
    "timestamptz": {"-infinity", "0001-01-01 00:00:00+00 BC"},
}
"""Texts of values that no reader of the formats could hold: their columns stay text."""


@pytest.fixture
def typings(source_dsn: str) -> dict[str, tuple[ValueType, list[str]]]:
    """The meaning of each type's values, and the server's own texts of them."""
    found = {}
    with psycopg.connect(source_dsn, autocommit=True) as connection:
        for statement in MADE:
            connection.execute(statement)  # type: ignore[arg-type]
        for name, setting in EXACT.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, setting])
        for kind, values in {**VALUES, **ARRAYS}.items():
            rows = connection.execute(
                f"SELECT format('%%s', v::{kind}) FROM unnest(%s::text[]) v",  # type: ignore[arg-type]
                [values],
            ).fetchall()
            found[kind] = _value_type(connection, kind), [row[0] for row in rows]
    return found


def _value_type(connection: psycopg.Connection[tuple[object, ...]], kind: str) -> ValueType:
    connection.execute(f"CREATE TEMP TABLE one (c {kind})")  # type: ignore[arg-type]
    (row,) = connection.execute(
        """
        WITH RECURSIVE base (type, name) AS (
            SELECT atttypid, format_type(atttypid, atttypmod) FROM pg_attribute
            WHERE attrelid = 'one'::regclass AND attname = 'c'
            UNION ALL
            SELECT typbasetype, name FROM base JOIN pg_type ON oid = type WHERE typtype = 'd'
        )
        SELECT name, format_type(type, NULL), typtype = 'e' FROM base JOIN pg_type ON oid = type WHERE typtype <> 'd'
        """
    ).fetchall()
    connection.execute("DROP TABLE one")
    name, base, is_enum = row
    return value_type(str(name), str(base), is_enum=bool(is_enum))


def test_what_the_server_writes_of_every_type_comes_back_or_stays_text(
    typings: dict[str, tuple[ValueType, list[str]]], source_dsn: str
) -> None:
    assert {kind for kind, (value, _) in typings.items() if arrow_type(value) is not None} == _TYPED
    assert {value for kind, (value, _) in typings.items() if kind not in _TYPED} == {OPAQUE}
    for kind, (value, written) in typings.items():
        for text in written:
            if text in _UNFIT.get(kind, ()):
                with pytest.raises(Unfit):
                    parse(pa.array([text]), value)
                continue
            back = texts(parse(pa.array([text, None]), value)).to_pylist()
            assert back[1] is None
            if value.kind is ValueKind.FLOAT:
                assert _same_number(source_dsn, kind, back[0], text)
            else:
                assert back[0] == text, kind


def _same_number(dsn: str, kind: str, back: str, text: str) -> bool:
    """Compare by the bits that the server sends, which tell -0 from 0."""
    send = {"real": "float4send", "double precision": "float8send"}[kind]
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            f"SELECT {send}(%s::text::{kind}) = {send}(%s::text::{kind})",  # type: ignore[arg-type]
            [back, text],
        ).fetchone()
    return row == (True,)
