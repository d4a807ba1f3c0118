"""A server does with values at the edge what `fit` says of two types."""

from __future__ import annotations

import psycopg
import pytest

from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import Fit, fit
from tests.support.variants import gated

EDGES = {
    "smallint": ("32767", "-32768"),
    "integer": ("2147483647", "-2147483648"),
    "bigint": ("9223372036854775807", "-9223372036854775807"),
    "numeric": ("12345678901234567890.123456789", "0.10", "0.12345"),
    "numeric(10,4)": ("999999.9999", "1.5000", "1.2345"),
    "numeric(12,0)": ("999999999999", "-1"),
    "numeric(6,2)": ("9999.99", "0.10"),
    "real": ("3.4028235e+38", "0.1", "0.12345679", "1e+06"),
    "double precision": ("1.7976931348623157e+308", "0.1", "0.12345678901234"),
    "text": ("x" * 300, ""),
    "character varying(3)": ("abc", ""),
    "character varying(20)": ("a" * 20, ""),
    "character(5)": ("abcde", "a    "),
    "date": ("2024-02-29", "0044-03-15 BC"),
    "timestamp without time zone": ("2024-02-29 23:59:59.999999",),
    "timestamp(3) without time zone": ("2024-02-29 23:59:59.999",),
    "timestamp with time zone": ("2024-02-29 23:59:59.999999+00",),
    "time without time zone": ("23:59:59.999999",),
    "time with time zone": ("23:59:59.999999+02",),
    "boolean": ("t", "f"),
    "uuid": ("00000000-0000-0000-0000-000000000001",),
    "json": ('{"b": 1,  "a": 1}',),
    "jsonb": ('{"a": 1}',),
    "integer[]": ("{2147483647}",),
    "bigint[]": ("{9223372036854775807}",),
}
"""Texts as the source prints them."""


BADNESS = [Fit.EXACT, Fit.REFORMATS, Fit.REFUSES, Fit.LOSES]


@gated
@pytest.mark.parametrize("source", EDGES)
def test_fit_never_says_better_than_what_the_server_does(target_dsn: str, source: str) -> None:
    wrong = []
    with psycopg.connect(target_dsn, autocommit=True) as connection:
        connection.execute("SET timezone = 'UTC'; SET datestyle = 'ISO, YMD'")
        for target in EDGES:
            did = {_kept(connection, source, target, text) for text in EDGES[source]}
            said = fit(source, target)
            is_enough = BADNESS.index(said) >= max(map(BADNESS.index, did))
            # What is refused stops the unit, so that need not be told besides.
            is_enough |= said is Fit.REFUSES and Fit.REFUSES in did
            # And a run is not stopped for nothing.
            is_fair = said is not Fit.LOSES or Fit.LOSES in did
            if not (is_enough and is_fair):
                wrong.append(f"{source} to {target}: said {said.value}, did {sorted(one.value for one in did)}")
    assert not wrong


def _kept(connection: psycopg.Connection, source: str, target: str, text: str) -> Fit:
    connection.execute("DROP TABLE IF EXISTS taken")
    connection.execute(f"CREATE TEMP TABLE taken (v {target})")
    try:
        with connection.cursor().copy("COPY taken FROM STDIN") as copy:
            copy.write_row([text])
    except psycopg.DataError:
        return Fit.REFUSES
    if _printed(connection, "TABLE taken") == text:
        return Fit.EXACT
    # The same value, if the source's type has it back; of json, its contents.
    equal = f"v::jsonb = '{text}'" if source == "json" else f"v::{source} = '{text}'::{source}"
    try:
        found = connection.execute(f"SELECT {equal} FROM taken").fetchone()
    except psycopg.Error:
        return Fit.LOSES
    return Fit.REFORMATS if found is not None and found[0] else Fit.LOSES


def _printed(connection: psycopg.Connection, query: str) -> str:
    """By the type's output function, as pgoutput does."""
    with connection.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        return b"".join(bytes(data) for data in copy).decode().removesuffix("\n")


def test_types_of_the_users_own_are_left_to_the_server() -> None:
    assert fit("public.mood", "mood") is Fit.UNKNOWN
    assert fit("public.mood", "text") is Fit.EXACT
    assert fit("bit(3)", "bit(4)") is Fit.REFUSES
    assert fit("bit(3)", "bit varying(5)") is Fit.EXACT
    assert fit("interval day to second(3)", "interval") is Fit.UNKNOWN
