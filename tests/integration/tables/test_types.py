"""Every built-in type as a column, in arrays, in whole images and as a key: the same text on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns
from tests.support.rig import Rig
from tests.support.type_values import ARRAYS, MADE, VALUES
from tests.support.variants import gated

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
    made.both(*MADE)
    return made


@pytest.mark.parametrize("channels", [pytest.param(1, marks=pytest.mark.long), 4])
def test_every_type_has_the_same_text_on_both_sides(rig: Rig, channels: int) -> None:
    rig = rig.having(channels=channels)
    types = {**VALUES, **ARRAYS}
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


@gated
def test_every_type_that_can_be_a_key_is_one(rig: Rig) -> None:
    keys = {
        kind: values for kind, values in {**VALUES, **ARRAYS}.items() if kind.removesuffix("[]") not in _WITHOUT_ORDER
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
