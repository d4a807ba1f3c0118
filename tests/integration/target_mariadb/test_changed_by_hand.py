"""Tables that somebody brings to the source's newer definition by hand, by the commands of a hint."""

from __future__ import annotations

import re
from typing import Final

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError, TargetError
from tests.support.ddl_messages import install
from tests.support.mariadb_rig import MariaDbRig
from tests.support.rig import skip_as_the_hint_says
from tests.support.variants import GATED, gated

SOURCE: Final = ("CREATE TABLE good (id integer PRIMARY KEY, v text)",)
TARGET: Final = ("CREATE TABLE good (id int PRIMARY KEY, v longtext, more int DEFAULT 7)",)


@gated
def test_a_definition_that_changes_is_followed_by_hand_alone(maria: MariaDbRig) -> None:
    maria.make(SOURCE, TARGET)
    rig = maria.rig.having(channels=1, lanes=1)
    rig.prepare()
    rig.write("INSERT INTO good VALUES (1, 'a')", "ALTER TABLE good ADD late integer")
    rig.write("INSERT INTO good VALUES (2, 'b', 7)")
    with pytest.raises(TargetError, match=r"cannot follow by itself|column late is missing"):
        rig.run("first")
    skipping = rig.having(ddl=DdlPolicy.SKIP)
    with pytest.raises(TargetError, match="late"):
        skipping.run("first")
    maria.server.run("ALTER TABLE good ADD late int", database="test")
    skipping.run("first")
    maria.require_equal("SELECT id, v, late FROM good")


@gated
@pytest.mark.parametrize(
    ("change", "at_target", "columns"),
    [
        ("ADD late integer DEFAULT 5", "ADD late int DEFAULT 5", "id, v, late"),
        pytest.param("RENAME v TO w", "RENAME COLUMN v TO w", "id, w", marks=GATED),
        pytest.param("DROP v", "DROP COLUMN v", "id", marks=GATED),
    ],
)
def test_rows_that_came_before_a_change_in_its_transaction_are_those_of_the_table_that_was_changed_by_hand(
    maria: MariaDbRig, change: str, at_target: str, columns: str
) -> None:
    maria.make(SOURCE, TARGET)
    rig = maria.rig.having(channels=1, lanes=1)
    rig.prepare()
    rig.transaction("INSERT INTO good VALUES (1, 'a')", f"ALTER TABLE good {change}", "INSERT INTO good VALUES (2)")
    with pytest.raises(FatalError, match=r"cannot follow by itself") as told:
        rig.run()
    assert ("ADD COLUMN `late` int DEFAULT '5'" in str(told.value)) == ("late" in change)
    maria.server.run(f"ALTER TABLE good {at_target}", database="test")
    skip_as_the_hint_says(rig, told.value)
    maria.require_equal(f"SELECT {columns} FROM good")


@gated
def test_definitions_that_a_transaction_brings_one_after_the_other_are_made_together(maria: MariaDbRig) -> None:
    maria.make(SOURCE, ("CREATE TABLE good (id int PRIMARY KEY, v longtext)",))
    rig = maria.rig.having(channels=1, lanes=1)
    install(rig.source_dsn)
    rig.prepare()
    rig.write("INSERT INTO good VALUES (1, 'a')")
    rig.run()
    rig.transaction(
        "INSERT INTO good VALUES (2, 'b')",
        "ALTER TABLE good RENAME v TO w",
        "ALTER TABLE good ADD v integer DEFAULT 5",
        "INSERT INTO good VALUES (3, 'c', 6)",
        "ALTER TABLE good RENAME id TO number",
        "INSERT INTO good VALUES (4, 'd', 7)",
    )
    with pytest.raises(FatalError, match="takes more of the same transaction as done") as told:
        rig.run()
    commands = re.findall(r"At the target: (ALTER TABLE .+?)\. (?=[A-Z])", str(told.value))
    assert len(commands) == 2
    maria.server.run(";".join(commands), database="test")
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    maria.require_equal("SELECT number, v, w FROM good")


@gated
def test_a_column_that_may_be_another_one_is_not_taken_for_that_of_before(maria: MariaDbRig) -> None:
    maria.make(SOURCE, TARGET)
    rig = maria.rig.having(channels=1, lanes=1)
    rig.prepare()
    rig.transaction(
        "INSERT INTO good VALUES (1, 'a')",
        "ALTER TABLE good DROP v",
        "ALTER TABLE good ADD v text",
        "INSERT INTO good VALUES (2, 'b')",
    )
    with pytest.raises(FatalError, match="nothing tells whether v is the column of before") as told:
        rig.run()
    with pytest.raises(FatalError, match="nothing tells what they have in v since"):
        skip_as_the_hint_says(rig, told.value)
    assert maria.read("SELECT id FROM good") == []


@gated
@pytest.mark.parametrize(
    ("change", "command", "column"),
    [
        ("RENAME v TO w", "RENAME COLUMN `v` TO `w`", "w"),
        pytest.param("ADD late integer DEFAULT 5", "ADD COLUMN `late` int DEFAULT '5'", "late", marks=GATED),
    ],
)
def test_a_hint_has_the_commands_for_a_definition_that_changed(
    maria: MariaDbRig, change: str, command: str, column: str
) -> None:
    maria.make(SOURCE, TARGET)
    rig = maria.rig.having(channels=1, lanes=1, ddl=DdlPolicy.SKIP)
    rig.prepare()
    rig.write("INSERT INTO good VALUES (1, 'a')", f"ALTER TABLE good {change}", "INSERT INTO good VALUES (2, 'b')")
    with pytest.raises(TargetError) as refused:
        rig.run("first")
    (found,) = re.findall(r"At the target: (ALTER TABLE .*?)\. ", f"{refused.value} ")
    assert found == f"ALTER TABLE `test`.`good` {command}"
    assert f"{command}. " in str(refused.value).partition(found)[2], "the note has the same command"
    maria.server.run(found, database="test")
    rig.run("first")
    maria.require_equal(f"SELECT id, {column} FROM good")


@gated
def test_older_rows_get_the_default_of_a_new_column_by_the_command_of_the_hint(maria: MariaDbRig) -> None:
    maria.make(SOURCE, TARGET)
    maria.rig.prepare()
    added = (
        "live boolean NOT NULL DEFAULT true",
        r"raw bytea DEFAULT '\x5c27'",
        "at timestamptz DEFAULT '2026-01-31 12:00:00.5+02'",
        r"path text DEFAULT 'c:\it''s'",
        "n numeric(10, 2) DEFAULT 1.5",
    )
    maria.rig.write("INSERT INTO good VALUES (1, 'a')", f"ALTER TABLE good {', '.join(f'ADD {one}' for one in added)}")
    maria.rig.write("INSERT INTO good VALUES (2, 'b')")
    with pytest.raises(FatalError, match="cannot follow by itself") as told:
        maria.rig.run()
    (found,) = re.findall(r"At the target: (ALTER TABLE .*?)\. ", f"{told.value} ")
    maria.server.run(found, database="test")
    skip_as_the_hint_says(maria.rig, told.value)
    maria.rig.run()
    assert maria.rig.comparison().equal


@gated
def test_a_column_that_the_target_has_already_is_to_hold_what_older_rows_have_at_the_source(maria: MariaDbRig) -> None:
    maria.make(SOURCE, [*TARGET, "ALTER TABLE good ADD late int DEFAULT 7"])
    rig = maria.rig.having(channels=1, lanes=1)
    rig.prepare()
    rig.write("INSERT INTO good VALUES (1, 'a')", "ALTER TABLE good ADD late integer", "INSERT INTO good VALUES (2)")
    with pytest.raises(FatalError, match="has late already: older rows are to have NULL in late") as told:
        rig.run()
    maria.server.run("UPDATE good SET late = NULL", database="test")
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize(
    ("changes", "command"),
    [
        (("RENAME a TO x", "RENAME b TO a", "RENAME x TO b"), "RENAME COLUMN `a` TO `b`, RENAME COLUMN `b` TO `a`"),
        pytest.param(("DROP a", "RENAME b TO a"), "DROP COLUMN `a`, RENAME COLUMN `b` TO `a`", marks=pytest.mark.long),
    ],
)
def test_a_column_takes_another_one_s_name_as_the_hint_says(
    maria: MariaDbRig, changes: tuple[str, ...], command: str
) -> None:
    maria.make(
        ["CREATE TABLE t (id integer PRIMARY KEY, a text, b text)"],
        ["CREATE TABLE t (id int PRIMARY KEY, a longtext, b longtext) CHARACTER SET utf8mb4"],
    )
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t VALUES (1, 'a', 'b')")
    maria.rig.run()
    maria.rig.write(*(f"ALTER TABLE t {change}" for change in changes), "INSERT INTO t VALUES (2, 'c')")
    with pytest.raises(FatalError, match="cannot follow by itself") as told:
        maria.rig.run()
    (found,) = re.findall(r"At the target: (ALTER TABLE .*?)\. ", f"{told.value} ")
    assert command in found
    assert ("if somebody did it before" in str(told.value)) == ("TO x" in changes[0])
    maria.server.run(found, database="test")
    skip_as_the_hint_says(maria.rig, told.value)
    maria.rig.run()
    assert maria.rig.comparison().equal


@gated
@pytest.mark.parametrize(
    "changes",
    [
        ("ALTER a TYPE bigint", "DROP b", "ADD b text"),
        pytest.param(
            ("ALTER b TYPE bigint", "RENAME a TO x", "RENAME b TO a", "RENAME x TO b"), marks=pytest.mark.long
        ),
        pytest.param(("ALTER a TYPE bigint", "RENAME a TO c"), marks=pytest.mark.long),
    ],
)
def test_types_that_changed_beside_names_are_in_the_hint_s_commands(
    maria: MariaDbRig, changes: tuple[str, ...]
) -> None:
    maria.make(
        ["CREATE TABLE t (id integer PRIMARY KEY, a integer, b integer NOT NULL)"],
        ["CREATE TABLE t (id int PRIMARY KEY, a int, b int NOT NULL)"],
    )
    install(maria.rig.source_dsn)
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t VALUES (1, 1, 2)")
    maria.rig.run()
    big = 2**40
    columns = "id, c, b" if "RENAME a TO c" in changes else "id, a, b"
    maria.rig.write(*(f"ALTER TABLE t {change}" for change in changes))
    maria.rig.write(f"INSERT INTO t ({columns}) VALUES (2, {big}, 4)")
    with pytest.raises(FatalError, match="cannot follow by itself") as told:
        maria.rig.run()
    (found,) = re.findall(r"At the target: (ALTER TABLE .*?)\. ", f"{told.value} ")
    maria.server.run(found, database="test")
    skip_as_the_hint_says(maria.rig, told.value)
    maria.rig.run()
    assert maria.rig.comparison().equal


@gated
def test_a_type_that_the_target_has_already_leaves_older_values_to_a_person(maria: MariaDbRig) -> None:
    source = ("CREATE TABLE good (id integer PRIMARY KEY, v real)",)
    maria.make(source, ("CREATE TABLE good (id int PRIMARY KEY, v double)",))
    rig = maria.rig.having(channels=1, lanes=1)
    install(rig.source_dsn)
    rig.prepare()
    rig.write("INSERT INTO good VALUES (1, 0.1)", "ALTER TABLE good ALTER v TYPE double precision")
    rig.write("INSERT INTO good VALUES (2, 0.1)")
    with pytest.raises(FatalError, match=r"v became double precision at the source.*: older rows are to have") as told:
        rig.run()
    maria.server.run("UPDATE good SET v = 0.10000000149011612", database="test")
    skip_as_the_hint_says(rig, told.value)
    maria.require_equal("SELECT id, v FROM good")
