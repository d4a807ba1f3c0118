"""`compare` folds topics into rows: equal where they are, and where they are not the key that differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

import pytest

from tests.support.kafka.registry import Registry
from tests.support.rig import Rig
from tests.support.variants import gated

TABLES = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text, big text, at timestamptz, f double precision)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE bag (a integer, b bytea, x real)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "CREATE TABLE never (id integer PRIMARY KEY)",
)


@gated
@pytest.mark.parametrize(
    "format_", ["json", *(pytest.param(name, marks=pytest.mark.long) for name in ("debezium", "avro"))]
)
def test_every_kind_of_table_is_compared(make_rig: Callable[..., Rig], registry: Registry, format_: str) -> None:
    options = {"registry": quote(registry.url, safe="")} if format_ == "avro" else {}
    rig = make_rig(*TABLES, format=format_, **options).having(channels=3)
    rig.prepare()
    rig.write(
        "INSERT INTO t SELECT i, 'a', repeat(i::text, 9000), now(), i / 3.0 FROM generate_series(1, 40) i",
        "INSERT INTO bag SELECT i % 3, '\\x00ff', '-0' FROM generate_series(1, 20) i",
        "TRUNCATE t, bag",
        "INSERT INTO t SELECT i, 'a', repeat(i::text, 9000), now(), 'NaN' FROM generate_series(1, 40) i",
        "INSERT INTO bag SELECT i % 3, '\\x00ff', '-0' FROM generate_series(1, 20) i",
        "UPDATE t SET v = 'b'",
        # Columns that are not sent, with rows that go to other keys, and on to others.
        "UPDATE t SET id = id + 100 WHERE id % 2 = 0",
        "UPDATE t SET id = id + 100, v = 'c' WHERE id > 120",
        "DELETE FROM t WHERE id % 5 = 0",
        "UPDATE bag SET a = 7 WHERE a = 1",
        "DELETE FROM bag WHERE a = 2",
        "INSERT INTO bag VALUES (7, NULL, 'NaN'), (7, NULL, '0')",
    )
    rig.run()
    compared = {table.name: table for table in rig.comparison().tables}
    assert [table for table in compared.values() if not table.equal] == []
    rows = {name: table.source_rows for name, table in compared.items()}
    assert rows == {"public.t": 32, "public.bag": 15, "public.never": 0}
    rig.write("UPDATE t SET v = 'other' WHERE id = 1", "INSERT INTO never VALUES (3)")
    differing = {table.name: [str(one) for one in table.differences] for table in rig.comparison().tables}
    assert differing == {
        "public.t": ["(1) has other values in the target"],
        "public.bag": [],
        "public.never": ["(3) is missing in the target"],
    }


@gated
def test_a_topic_of_another_form_is_a_table_that_cannot_be_compared(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    rig.run()
    (table,) = replace(rig, target_dsn=f"{rig.target_dsn}&format=debezium").comparison().tables
    assert table.problem is not None
    assert "is not of the form debezium" in table.problem
