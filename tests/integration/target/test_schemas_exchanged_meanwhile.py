"""Schemas of the target that exchange names while rows are written, which no lock on a table keeps from happening."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.copy.postgres import recopy
from airflow_parallel_apply.pipeline.errors import FatalError, Unavailable
from airflow_parallel_apply.pipeline.target.postgres.redefine import applied_tables
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

_EXCHANGE = ("ALTER SCHEMA shop RENAME TO shop_old", "ALTER SCHEMA shop_new RENAME TO shop")
WRITES = {
    "merged": ("UPDATE shop.a SET v = v + 1", "INSERT INTO shop.a VALUES (11, 11)"),
    "inserted straight": ("INSERT INTO shop.a VALUES (11, 11)",),
    "replayed": ("TRUNCATE shop.a; INSERT INTO shop.a VALUES (1, 1)",),
}
_PREPARED = {"consistency": Consistency.EPOCH, "epoch_protocol": EpochProtocol.TWO_PHASE}


@pytest.fixture
def begun(rig: Rig) -> Rig:
    """Behind a run."""
    made = rig.having(tables=TablePatterns(include=("shop.*",)), channels=1)
    tables = [f"CREATE TABLE shop.{name} (id bigint PRIMARY KEY, v integer)" for name in "ab"]
    made.both("CREATE SCHEMA shop", *tables)
    made.prepare()
    made.write("INSERT INTO shop.a VALUES (1, 1)", "INSERT INTO shop.b VALUES (1, 1)")
    made.run()
    news = [f"CREATE TABLE shop_new.{name} (LIKE shop.{name} INCLUDING ALL)" for name in "ab"]
    execute(made.target_dsn, "CREATE SCHEMA shop_new", *news)
    return made


def exchanging(rig: Rig, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, behind whose first call the schemas exchange names."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        found = function(*args, **kwargs)
        calls += 1
        if calls == 1:
            with psycopg.connect(rig.target_dsn, autocommit=True, options="-c lock_timeout=10s") as connection:
                for statement in _EXCHANGE:
                    connection.execute(statement)
        return found

    return call


@pytest.mark.parametrize(
    ("way", "consistency"),
    [
        ("inserted straight", {}),
        pytest.param("merged", {}, marks=GATED),
        pytest.param("replayed", {}, marks=GATED),
        pytest.param("inserted straight", _PREPARED, marks=GATED),
    ],
)
def test_no_rows_go_to_a_table_that_takes_the_name_over(
    begun: Rig, monkeypatch: pytest.MonkeyPatch, way: str, consistency: dict[str, Any]
) -> None:
    begun = begun.having(**consistency)
    begun.write(*WRITES[way])
    monkeypatch.setattr(applied_tables, "describe_applied", exchanging(begun, applied_tables.describe_applied))
    with pytest.raises(FatalError, match=r"the table that had these rows so far is called shop_old\.a") as caught:
        begun.run()
    found = re.search(r"these rows have \((.*?)\), then run again", str(caught.value))
    assert found is not None, caught.value
    assert begun.rows("SELECT * FROM shop.a") == []
    execute(begun.target_dsn, *found[1].split("; "))
    begun.run()
    rows = "SELECT * FROM shop.a ORDER BY 1"
    assert begun.rows(rows) == begun.rows(rows, side="source")


@gated
def test_tables_that_are_copied_anew_have_their_names_until_all_are_there(
    begun: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [("shop", "a"), ("shop", "b")]
    monkeypatch.setattr(recopy, "send", exchanging(begun, recopy.send))
    with pytest.raises(Unavailable, match="somebody renamed the table or its schema"):
        recopy_tables(begun.config, begun.source, begun.target, names, report=lambda progress: None)
    assert begun.rows("SELECT * FROM shop.b") == []
    recopy_tables(begun.config, begun.source, begun.target, names, report=lambda progress: None)
    begun.write("UPDATE shop.a SET v = 7")
    begun.run()
    assert begun.comparison().equal
