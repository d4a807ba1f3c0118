"""Values of every type of PostgreSQL in tables as `check` proposes them: exact, or refused by table, column and key."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.errors import TargetError
from tests.support.mariadb_rig import MariaDbRig
from tests.support.type_values import ARRAYS, MADE, VALUES
from tests.support.variants import GATED, gated

REFUSED = {
    "real": ["-0", "NaN"],
    "double precision": ["-0", "Infinity"],
    "date": ["0044-03-15 BC", "infinity", "5874897-12-31"],
    "timestamp": ["infinity", "4713-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999"],
    "timestamptz": ["-infinity", "0001-01-01 BC"],
}
"""The values, among those of every test of types, that MariaDB has no place for."""

MORE = {
    "date": ["0001-01-01", "9999-12-31", "0999-02-28"],
    "timestamp": ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2024-02-29 12:00:00.5"],
    "timestamptz": ["0001-01-02 00:00:00+00", "9999-12-31 23:59:59.999999+00"],
    "numeric(38,10)": ["-9999999999999999999999999999.9999999999", "0.0000000001"],
    "numeric(60,30)": ["123456789012345678901234567890.123456789012345678901234567890"],
    "text": ["x" * 100_000, " ends with blanks  ", "\x01\x7f\u2028"],
    "bytea": ["\\x" + "00ff" * 40_000],
}
TYPES = {
    name: [value for value in [*VALUES.get(name, []), *MORE.get(name, [])] if value not in REFUSED.get(name, ())]
    for name in {**VALUES, **MORE}
} | dict(ARRAYS)


@gated
def test_values_of_every_type_arrive_in_tables_as_check_proposes_them(maria: MariaDbRig) -> None:
    columns = {f"c{number}": name for number, name in enumerate(TYPES)}
    defined = ", ".join(f"{column} {name}" for column, name in columns.items())
    maria.make([*MADE, f"CREATE TABLE v (id integer PRIMARY KEY, {defined})"], [])
    maria.propose()
    maria.rig.prepare()
    count = max(len(values) for values in TYPES.values())
    for number in range(count):
        # Some domains take no NULL.
        values = [values[min(number, len(values) - 1)] for values in TYPES.values()]
        maria.insert("v", [number, *values])
    maria.rig.run()
    for column, name in columns.items():
        found = dict(maria.read(f"SELECT id, {_shown(column, name)} FROM v"))
        wanted = dict(maria.written(f"SELECT id, format('%s', {column}) FROM v"))
        assert found.keys() == wanted.keys()
        for key, text in wanted.items():
            # None is NULL, and there is none: the client prints the text of these letters as it prints that.
            shown = "NULL" if found[key] is None else found[key]
            assert _value(shown, name) == _value(text, name), (name, text)


@gated
def test_a_value_that_the_target_lacks_is_refused_by_table_column_and_key(maria: MariaDbRig) -> None:
    columns = {f"c{number}": name for number, name in enumerate(REFUSED)}
    defined = ", ".join(f"{column} {name}" for column, name in columns.items())
    maria.make([f"CREATE TABLE v (id integer PRIMARY KEY, {defined})"], [])
    maria.propose()
    rig = maria.rig.having(channels=1, lanes=1)
    rig.prepare()
    rig.write("INSERT INTO v VALUES (1)", "INSERT INTO v (id, c2) VALUES (40, 'infinity')")
    with pytest.raises(TargetError, match=r"id=40\).*table public.v, column c2") as raised:
        rig.run()
    assert "infinity" not in str(raised.value)
    assert maria.read("SELECT id FROM v") == []


@gated
@pytest.mark.parametrize("channels", [1, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "column",
    [
        "at timestamp(6) NOT NULL",
        pytest.param("n int AUTO_INCREMENT UNIQUE", marks=GATED),
        pytest.param("at timestamp(6) NOT NULL DEFAULT '2001-01-01'", marks=GATED),
    ],
)
def test_null_that_the_server_would_make_another_value_of_is_refused(
    maria: MariaDbRig, column: str, channels: int
) -> None:
    name = column.split(maxsplit=1)[0]
    maria.make(
        [f"CREATE TABLE v (id integer PRIMARY KEY, {name} {'integer' if name == 'n' else 'timestamptz'})"],
        [f"CREATE TABLE v (id int PRIMARY KEY, {column})"],
    )
    rig = maria.rig.having(channels=channels, lanes=1)
    rig.prepare()
    value = "7" if name == "n" else "'2024-05-06 07:08:09+00'"
    rig.write(f"INSERT INTO v VALUES (1, {value}), (2, {value.replace('7', '8')})", "DELETE FROM v WHERE id = 2")
    rig.run("first")
    rig.write("INSERT INTO v (id) VALUES (40)")
    with pytest.raises(TargetError, match=rf"NULL .*id=40\).*table public.v, column {name}"):
        rig.run("second")
    assert maria.read("SELECT id FROM v") == [("1",)]
    maria.server.run(f"ALTER TABLE v MODIFY {name} {'int' if name == 'n' else 'timestamp(6)'} NULL", database="test")
    rig.run("second")
    maria.require_equal(f"SELECT id, {name} IS NULL FROM v", at_source=f"SELECT id, ({name} IS NULL)::integer FROM v")


def test_a_column_of_text_takes_any_value_as_the_sources_text(maria: MariaDbRig) -> None:
    columns = {f"c{number}": name for number, name in enumerate(REFUSED)}
    maria.make(
        [
            "CREATE TABLE v (id integer PRIMARY KEY, "
            + ", ".join(f"{one} {name}" for one, name in columns.items())
            + ")"
        ],
        ["CREATE TABLE v (id int PRIMARY KEY, " + ", ".join(f"{one} longtext" for one in columns) + ")"],
    )
    maria.rig.prepare()
    for number in range(3):
        values = [values[number] if number < len(values) else None for values in REFUSED.values()]
        maria.insert("v", [number, *values])
    maria.rig.run()
    listed = ", ".join(columns)
    texts = ", ".join(f"{one}::text" for one in columns)
    maria.require_equal(f"SELECT id, {listed} FROM v", at_source=f"SELECT id, {texts} FROM v")


def _shown(column: str, name: str) -> str:
    return f"HEX({column})" if name == "bytea" else column


def _value(text: str, name: str) -> object:
    match name:
        case "boolean":
            return text in ("1", "t", "true")
        case "bytea":
            return text.removeprefix("\\x").lower()
        case "char(5)" | "bpchar":
            # As text the source shows them without the blanks that pad them.
            return text.rstrip(" ")
        case "real" | "double precision":
            return float(text)
        case "timestamptz" | "timestamp" | "time" | "time(2)":
            plain = text.removesuffix("+00")
            return plain.rstrip("0").rstrip(".") if "." in plain else plain
        case _:
            return text
