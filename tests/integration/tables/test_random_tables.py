"""Random values of random tables, through random transactions: the text of both sides is the same."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Final

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import Consistency, PipelineConfig, TablePatterns
from tests.support.examples import examples
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_TEXT: Final = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40
) | st.sampled_from(["", "\\N", "\\.", "\t\n\r\\", "NULL", "{}", '"', "x" * 5000])
_INTEGERS: Final = st.integers(-(2**31), 2**31 - 1)
_NUMBERS: Final = st.decimals(allow_nan=True, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9).map(
    str
)
_FLOATS: Final = st.floats().map(lambda value: repr(value).replace("inf", "Infinity"))
_BYTES: Final = st.binary(max_size=20).map(lambda value: "\\x" + value.hex())
_TIMES: Final = st.datetimes().map(str) | st.sampled_from(["infinity", "-infinity", "0044-03-15 01:02:03 BC"])


def _array(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """As the server reads it, with NULLs, and now and then with a lower bound of its own."""
    element = st.none() | elements
    quoted = element.map(lambda e: "NULL" if e is None else '"' + e.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return st.builds(
        lambda low, found: (
            (f"[{low}:{low + len(found) - 1}]=" if found and low != 1 else "") + "{" + ",".join(found) + "}"
        ),
        st.integers(-2, 2),
        st.lists(quoted, max_size=3),
    )


def _range(bounds: st.SearchStrategy[int]) -> st.SearchStrategy[str]:
    return st.just("empty") | st.tuples(bounds, bounds).map(lambda pair: f"[{min(pair)},{max(pair)})")


TYPES: Final[dict[str, st.SearchStrategy[str]]] = {
    "integer": _INTEGERS.map(str),
    "bigint": st.integers(-(2**63), 2**63 - 1).map(str),
    "numeric": _NUMBERS,
    "numeric(20,5)": _NUMBERS.filter(lambda text: "N" not in text),
    "double precision": _FLOATS,
    "text": _TEXT,
    "varchar(50)": _TEXT.map(lambda text: text[:50]),
    "char(7)": st.text("ab ,\\", max_size=7),
    "bytea": _BYTES,
    "boolean": st.sampled_from(["t", "f"]),
    "date": st.dates().map(str),
    "timestamp": _TIMES,
    "timestamptz": _TIMES,
    "interval": st.timedeltas().map(lambda delta: f"{delta.days} days {delta.seconds} secs {delta.microseconds} us"),
    "uuid": st.uuids().map(str),
    "inet": st.ip_addresses().map(str),
    "jsonb": st.dictionaries(st.text("ab", max_size=3), _INTEGERS).map(lambda found: str(found).replace("'", '"')),
    "json": st.lists(_INTEGERS).map(lambda found: str(found).replace(",", " ,")),
    "money": st.integers(-(10**9), 10**9).map(str),
    "bit varying": st.text("01", max_size=9),
    "point": st.tuples(_FLOATS, _FLOATS).map(lambda pair: f"({pair[0]},{pair[1]})"),
    "mood": st.sampled_from(["sad", "so, so"]),
    "pair": st.tuples(_INTEGERS, st.sampled_from(["", '""', '"a ""b"", c"', "x"])).map(
        lambda one: f"({one[0]},{one[1]})"
    ),
    "int4range": _range(st.integers(-1000, 1000)),
    "int8multirange": st.lists(_range(st.integers(-99, 99)), max_size=3).map(lambda found: "{" + ",".join(found) + "}"),
    "text[]": _array(_TEXT),
    "numeric[]": _array(_NUMBERS),
    "mood[]": _array(st.sampled_from(["sad", "so, so"])),
    "small": st.integers(1, 9).map(str),
}
_WITHOUT_EQUALITY: Final = ("json", "point")


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], int, str]:
    """Types of the columns, how many of the first ones are the key, and how rows are identified."""
    identity = draw(st.sampled_from(["DEFAULT", "FULL", "USING INDEX t_key"]))
    key = draw(st.lists(st.sampled_from([one for one in TYPES if one not in _WITHOUT_EQUALITY]), max_size=2))
    if not key and identity != "FULL":
        key = ["bigint"]
    return key + draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=5)), len(key), identity


@gated
@settings(
    max_examples=examples(20), deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(table=tables(), consistency=st.sampled_from(Consistency), data=st.data())
def test_random_values_of_random_tables_have_the_same_text_on_both_sides(
    source_server: PostgresServer,
    target_server: PostgresServer,
    tmp_path: Path,
    table: tuple[list[str], int, str],
    consistency: Consistency,
    data: st.DataObject,
) -> None:
    name = f"random_{uuid.uuid4().hex[:12]}"
    for server in (source_server, target_server):
        server.create_database(name)
    config = PipelineConfig(
        pipeline=name,
        log_url=str(tmp_path / name),
        channels=3,
        lanes=2,
        tables=TablePatterns(),
        epoch_max_changes=15,
        consistency=consistency,
    )
    rig = Rig(config=config, source_dsn=source_server.dsn(name), target_dsn=target_server.dsn(name))
    try:
        _make(rig, *table)
        rig.prepare()
        with psycopg.connect(rig.source_dsn, autocommit=True) as connection:
            for _ in range(data.draw(st.integers(1, 6), label="transactions")):
                with connection.transaction(force_rollback=data.draw(st.integers(0, 9)) == 0):
                    for _ in range(data.draw(st.integers(1, 6), label="changes")):
                        _change(connection, table[0], table[1], data)
        rig.run()
        comparison = rig.comparison()
        assert comparison.equal, comparison
    finally:
        execute(
            source_server.dsn(),
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{name}'",
        )
        for server in (source_server, target_server):
            execute(server.dsn(), f"DROP DATABASE {name} WITH (FORCE)")


def _make(rig: Rig, types: list[str], key_count: int, identity: str) -> None:
    columns = [f"c{number} {kind}{' NOT NULL' if number < key_count else ''}" for number, kind in enumerate(types)]
    key = ", ".join(f"c{number}" for number in range(key_count))
    index = [f"CREATE UNIQUE INDEX t_key ON t ({key})"] if key else []
    rig.both(
        "CREATE TYPE mood AS ENUM ('sad', 'so, so')",
        "CREATE TYPE pair AS (n integer, t text)",
        "CREATE DOMAIN small AS integer CHECK (VALUE < 10)",
        f"CREATE TABLE t ({', '.join(columns)})",
        *index,
        *(["ALTER TABLE t ADD PRIMARY KEY USING INDEX t_key"] if key and identity == "DEFAULT" else []),
        *([f"ALTER TABLE t REPLICA IDENTITY {identity}"] if identity != "DEFAULT" else []),
    )


def _change(connection: psycopg.Connection[Any], types: list[str], key_count: int, data: st.DataObject) -> None:
    """Make a change; one that an index or a type refuses is undone alone."""
    number = data.draw(st.integers(0, len(types) - 1))
    match data.draw(st.sampled_from(["insert", "insert", "insert", "again", "update", "delete"])):
        case "insert":
            values = [_value(kind, data, nullable=place >= key_count) for place, kind in enumerate(types)]
            text = f"INSERT INTO t VALUES ({', '.join(['%s'] * len(types))})"
        case "again":
            values, text = [], "INSERT INTO t SELECT * FROM t LIMIT 1"
        case "update":
            values = [_value(types[number], data, nullable=number >= key_count)]
            text = f"UPDATE t SET c{number} = %s WHERE ctid = (SELECT max(ctid) FROM t)"
        case _:
            values, text = [], "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t)"
    try:
        with connection.transaction():
            connection.execute(text, values)  # type: ignore[arg-type]
    except (psycopg.errors.IntegrityError, psycopg.errors.DataError):
        return


def _value(kind: str, data: st.DataObject, *, nullable: bool) -> str | None:
    return data.draw(st.none() | TYPES[kind] if nullable else TYPES[kind], label=kind)
