"""Keys that are equal, and have other texts: of some types a row may get another text without getting another key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import TargetError
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import execute
from tests.support.variants import gated, variants


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as found:
        yield found


@gated
@pytest.mark.parametrize("action", variants(["SET NULL", "CASCADE"], seldom=["CASCADE"]))
def test_another_text_of_a_key_leaves_the_children_alone(rig: PlainRig, action: str) -> None:
    """A merge would delete and insert such a row, and the foreign key would act on that."""
    rig.both(
        "CREATE TABLE parent (every interval PRIMARY KEY)",
        f"CREATE TABLE child (id integer PRIMARY KEY, every interval REFERENCES parent ON DELETE {action})",
    )
    rig.prepare()
    rig.write("INSERT INTO parent VALUES ('1 day')", "INSERT INTO child VALUES (1, '1 day')")
    rig.run()
    rig.write("UPDATE parent SET every = '24 hours'")
    rig.run()
    assert rig.comparison().equal


@gated
def test_another_text_of_a_key_is_no_change_that_a_trigger_made(rig: PlainRig) -> None:
    rig.both("CREATE TABLE t (every interval PRIMARY KEY)")
    rig.prepare()
    execute(
        psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres"),
        "CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END'",
        "CREATE TRIGGER passes BEFORE INSERT OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION pass()",
    )
    rig.write("INSERT INTO t VALUES ('1 day')")
    rig.run()
    rig.write("UPDATE t SET every = '24 hours'")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_text_of_the_target_that_tells_equal_keys_apart_is_named(rig: PlainRig) -> None:
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    rig.both("CREATE TABLE t (k numeric PRIMARY KEY)")
    execute(owner, "ALTER TABLE t ALTER k TYPE text")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1.0)")
    rig.run()
    rig.write("UPDATE t SET k = 1.00")
    with pytest.raises(TargetError, match="not in the target") as told:
        rig.run()
    statement = re.search(r"run (ALTER TABLE .*?)\. Otherwise", str(told.value))
    assert statement is not None, str(told.value)
    execute(owner, statement[1])
    rig.run()
    assert rig.comparison().equal
