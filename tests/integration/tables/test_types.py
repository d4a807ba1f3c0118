"""Every built-in type as a column, in arrays, in whole images and as a key: the same text on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns
from tests.support.rig import Rig

_MADE: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'so, so', 'it''s \"fine\"')",
    "CREATE TYPE inner_pair AS (n numeric, t text)",
    "CREATE TYPE outer_pair AS (p inner_pair, a integer[], m mood)",
    "CREATE DOMAIN positive AS integer NOT NULL DEFAULT 1 CHECK (VALUE > 0)",
    "CREATE DOMAIN below_ten AS positive CHECK (VALUE < 10)",
    "CREATE DOMAIN short AS numeric(6, 3)",
    "CREATE DOMAIN shorter AS short",
    "CREATE DOMAIN words AS text[]",
    "CREATE DOMAIN a_pair AS inner_pair",
    "CREATE TYPE text_range AS RANGE (subtype = text)",
    "CREATE EXTENSION vector",
)

_VALUES: Final[dict[str, list[str]]] = {
    "smallint": ["-32768", "0"],
    "integer": ["-2147483648", "7"],
    "bigint": ["9223372036854775807", "-1"],
    "numeric": ["1.0", "1.00", "NaN", "Infinity", "-1e-20", "123456789012345678901234567890.123"],
    "numeric(8,3)": ["1.5", "-99999.999"],
    "numeric(3,-2)": ["12300", "-99900"],
    "real": ["3.4028235e38", "-0", "NaN", "1.17549435e-38"],
    "double precision": ["0.1", "-0", "Infinity", "5e-324", "1.7976931348623157e308"],
    "money": ["-1234.50", "92233720368547758.07"],
    "text": ["", "\\N", "\\.", "a\tb\nc\r\\d", "é 漢字 🙂", "NULL", "{}", '"'],
    "varchar(12)": ["x ", "X"],
    "char(5)": ["", "a", "a,b"],
    "bpchar": ["a  ", "a"],
    "name": ["a name", "\\"],
    '"char"': ["x", "\\", "", "\\377"],
    "bytea": ["\\x", "\\x00ff5c0a", "abc"],
    "boolean": ["true", "false"],
    "date": ["0044-03-15 BC", "infinity", "5874897-12-31", "2024-02-29"],
    "time": ["24:00:00", "00:00:00.000001"],
    "time(2)": ["01:02:03.04"],
    "timetz": ["01:02:03+05:30", "24:00:00-15:59"],
    "timestamp": ["infinity", "4713-11-24 00:00:00 BC", "294276-12-31 23:59:59.999999"],
    "timestamptz": ["-infinity", "2024-03-31 02:30:00+01", "0001-01-01 BC"],
    "interval": ["1 year -2 mons 3 days -04:05:06.000007", "infinity", "1 day", "24:00"],
    "interval day to second(1)": ["3 days 04:05:06.7"],
    "uuid": ["00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "inet": ["10.0.0.1/8", "::ffff:1.2.3.4", "1.2.3.4/32", "1.2.3.4"],
    "cidr": ["10.0.0.0/8", "2001:db8::/32"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "bit(3)": ["101"],
    "bit varying": ["", "0", "00"],
    "json": ['{"a" : 1,  "a":2}', "null", '"\\u00e9"', "[1.0, 1.00]"],
    "jsonb": ['{"b": 1.50, "a": [null]}', "1.0", "1.00", '"\\t"'],
    "jsonpath": ['$."a b"[*] ? (@ > 1)'],
    "tsvector": ["'a':1A 'b c':2,3", ""],
    "tsquery": ["'a' & !'b' <-> 'c':*", ""],
    "point": ["(1,-0)", "(NaN,1e-30)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(0,0),(1,1)]"],
    "box": ["(1,1),(0,0)", "(2,0.5),(0,0)"],
    "path": ["[(0,0),(1,1)]", "((0,0),(1,1))"],
    "polygon": ["((0,0),(1,1e-30))"],
    "circle": ["<(0,0),1>", "<(5,5),1>"],
    "pg_lsn": ["16/B374D848"],
    "pg_snapshot": ["10:20:10,14,15"],
    "txid_snapshot": ["10:20:10,14,15"],
    "xid": ["4294967295"],
    "xid8": ["18446744073709551615"],
    "oid": ["4294967295"],
    "tid": ["(1,2)"],
    "int2vector": ["1 2 3"],
    "refcursor": ["<unnamed portal 1>"],
    "mood": ["sad", "so, so", 'it\'s "fine"'],
    "inner_pair": ['(1.50,"a ""b"", c")', "(,)", '(,"")'],
    "outer_pair": ['("(1.0,\\"x,y\\")","{1,NULL}","so, so")', "(,,)"],
    "below_ten": ["9", "1"],
    "shorter": ["1.5"],
    "words": ['{"",NULL,"null"}'],
    "a_pair": ["(1,x)"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "numrange": ["[1.0,2.50]"],
    "tstzrange": ["[2020-01-01 00:00+02,infinity]"],
    "daterange": ["[2020-01-01,2020-02-01]"],
    "text_range": ['["a,b","c\\"d")'],
    "int8multirange": ["{[1,2),[5,9)}", "{}"],
    "datemultirange": ["{[2020-01-01,2020-02-01)}"],
    "text_multirange": ['{["a,b","c\\"d")}'],
    "vector(3)": ["[1,2.5,-0]"],
    "halfvec(2)": ["[1,2]"],
    "sparsevec(5)": ["{1:1.5,3:2}/5"],
}

_ARRAYS: Final = {
    "integer[]": ["{{1,2},{3,NULL}}", "[-1:0][5:5]={{1},{2}}", "{}"],
    "text[]": ['{"",NULL,"null","a,b","\\\\","{}"}', "[0:1]={a,b}"],
    "mood[]": ['{sad,NULL,"so, so"}'],
    "inner_pair[]": ['{"(1,a)",NULL,"(,\\"x\\")"}'],
    "below_ten[]": ["{1,9}"],
    "words[]": ["{}"],
    "box[]": ["{(1,1),(0,0);(2,2),(1,1)}"],
    "bytea[]": ['{"\\\\x00ff",NULL}'],
    "jsonb[]": ['{"{\\"a\\": 1}"}'],
    "timestamptz[]": ["{infinity,NULL}"],
    "int4range[]": ['{"[1,5)",empty}'],
    "money[]": ["{1.50,-2}"],
}

_SPOILING: Final = (
    "datestyle = 'SQL, DMY'",
    "intervalstyle = sql_standard",
    "timezone = 'Asia/Kolkata'",
    "bytea_output = escape",
    "extra_float_digits = 0",
    "array_nulls = off",
    "xmloption = document",
    "default_transaction_isolation = serializable",
    "quote_all_identifiers = on",
)

_WITHOUT_ORDER: Final = {
    "json", "jsonpath", "point", "line", "lseg", "box", "path", "polygon", "circle", "pg_snapshot", "txid_snapshot",
    "xid", "refcursor", "a_pair", "outer_pair",
}  # fmt: skip


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=4,
        lanes=1,
        tables=TablePatterns(include=("*.*",)),
        epoch_max_changes=40,
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both(*_MADE)
    return made


@pytest.mark.parametrize("channels", [pytest.param(1, marks=pytest.mark.long), 4])
def test_every_type_has_the_same_text_on_both_sides(rig: Rig, channels: int) -> None:
    rig = rig.having(channels=channels)
    types = {**_VALUES, **_ARRAYS}
    # One column of each type, a table for each identity; session settings that spoil text are the databases' own.
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(types))
    for dsn in (rig.source_dsn, rig.target_dsn):
        with psycopg.connect(dsn, autocommit=True) as connection:
            for setting in _SPOILING:
                connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}")  # type: ignore[arg-type]
    rig.both(
        f"CREATE TABLE keyed (id integer PRIMARY KEY, {columns})",
        f"CREATE TABLE images (id integer, {columns})",
        "ALTER TABLE images REPLICA IDENTITY FULL",
    )
    rig.prepare()
    rows = []
    for row in range(max(len(values) for values in types.values())):
        given = [quoted(values[row % len(values)]) + f"::{kind}" for kind, values in types.items()]
        rows.append(f"({row}, {', '.join(given)})")
    settings = "SET array_nulls = on; SET xmloption = content; SET datestyle = 'ISO, YMD'; "
    for table in ("keyed", "images"):
        rig.write(*(f"{settings} INSERT INTO {table} VALUES {row}" for row in rows))
        rig.write(f"INSERT INTO {table} (id, {_not_null(types)}) SELECT 100, 1, '{{}}'")
    rig.run()
    assert_equal(rig)
    for table in ("keyed", "images"):
        rig.write(
            f"UPDATE {table} SET id = id + 1000 WHERE id % 2 = 0",
            *(
                f"UPDATE {table} SET c{number} = NULL WHERE id = 3"
                for number, kind in enumerate(types)
                if kind != "below_ten"
            ),
            f"DELETE FROM {table} WHERE id = 5",
        )
    rig.run()
    assert_equal(rig)
    for table in ("keyed", "images"):
        rig.transaction(
            f"{settings} TRUNCATE {table}",
            *(f"INSERT INTO {table} VALUES {row}" for row in (*rows, rows[0].replace("(0,", "(50,", 1))),
            f"UPDATE {table} SET id = id + 1000 WHERE id % 2 = 0",
            f"DELETE FROM {table} WHERE id = 1",
        )
    rig.run()
    assert_equal(rig)


def _not_null(types: dict[str, list[str]]) -> str:
    return ", ".join(f"c{number}" for number, kind in enumerate(types) if kind in ("below_ten", "below_ten[]"))


def test_every_type_that_can_be_a_key_is_one(rig: Rig) -> None:
    keys = {
        kind: values for kind, values in {**_VALUES, **_ARRAYS}.items() if kind.removesuffix("[]") not in _WITHOUT_ORDER
    }
    rig.both(*(f"CREATE TABLE k{number} (k {kind} PRIMARY KEY, v text)" for number, kind in enumerate(keys)))
    rig.prepare()
    for number, (kind, values) in enumerate(keys.items()):
        for value in values:
            # Of values that are equal to the index the later text wins, as an update of the key.
            rig.transaction(
                f"UPDATE k{number} SET k = {quoted(value)}::{kind} WHERE k = {quoted(value)}::{kind}",
                f"INSERT INTO k{number} SELECT {quoted(value)}::{kind}, 'new' ON CONFLICT DO NOTHING",
            )
        rig.write(f"UPDATE k{number} SET v = 'seen'")
        rig.transaction(
            f"CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM k{number} LIMIT 1",
            f"DELETE FROM k{number} WHERE k = (SELECT k FROM kept)",
            f"INSERT INTO k{number} SELECT k, 'again' FROM kept",
            f"UPDATE k{number} SET v = v || '!'",
        )
    rig.run()
    assert_equal(rig)
    for number in range(len(keys)):
        rig.write(f"DELETE FROM k{number} WHERE k = (SELECT k FROM k{number} LIMIT 1)")
    rig.run()
    assert_equal(rig)


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, [
        (table.name, table.problem, [str(one) for one in table.differences])
        for table in comparison.tables
        if not table.equal
    ]
