"""Tables that take other names at the source: somebody gives the target's theirs by hand, at the right moment."""

from __future__ import annotations

import re
from typing import Final

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.mariadb_rig import MariaDbRig
from tests.support.rig import skip_as_the_hint_says
from tests.support.variants import GATED, gated

COLUMNS: Final = "(id integer PRIMARY KEY, v varchar(20))"
EXCHANGE: Final = ("ALTER TABLE a RENAME TO x", "ALTER TABLE b RENAME TO a", "ALTER TABLE x RENAME TO b")


@pytest.fixture
def renamed(maria: MariaDbRig) -> MariaDbRig:
    """Tables `a` and `b` with a row each."""
    maria.make(
        [f"CREATE TABLE {name} {COLUMNS}" for name in "ab"],
        [f"CREATE TABLE {name} {COLUMNS} CHARACTER SET utf8mb4" for name in "ab"],
    )
    maria.rig.prepare()
    maria.rig.write("INSERT INTO a VALUES (1, 'a')", "INSERT INTO b VALUES (2, 'b')")
    maria.rig.run()
    return maria


def at_target(maria: MariaDbRig, told: str) -> None:
    """Do what a hint says."""
    command = re.search(r"RENAME TABLE (?:[^.]|\.(?! ))+", told)
    assert command is not None, told
    maria.server.run(command[0].removesuffix("."), database=maria.database)


def alter(maria: MariaDbRig, told: str, change: str) -> None:
    """Alter `a` as a hint says it."""
    command = f"ALTER TABLE `test`.`a` {change}"
    assert f"{command}." in told, told
    maria.server.run(command, database=maria.database)


@gated
def test_tables_that_exchanged_their_names_get_no_row_before_the_target_s_have(renamed: MariaDbRig) -> None:
    renamed.rig.write("INSERT INTO a VALUES (3, 'a')")
    renamed.rig.transaction(*EXCHANGE)
    renamed.rig.write("INSERT INTO a VALUES (4, 'b')", "INSERT INTO b VALUES (5, 'a')")
    with pytest.raises(FatalError, match=r"RENAME TABLE .*if somebody did it before") as told:
        renamed.rig.run()
    at_target(renamed, str(told.value))
    skip_as_the_hint_says(renamed.rig, told.value)
    renamed.rig.run()
    assert renamed.rig.comparison().equal


@gated
@pytest.mark.parametrize("beside", [False, pytest.param(True, marks=GATED)])
def test_a_table_that_was_renamed_ahead_of_its_rows_gets_its_name_back(renamed: MariaDbRig, beside: bool) -> None:
    renamed.rig.write("INSERT INTO a VALUES (3, 'a')", "ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (4, 'c')")
    renamed.server.run("RENAME TABLE a TO c", database="test")
    if beside:
        renamed.server.run(f"CREATE TABLE a {COLUMNS} CHARACTER SET utf8mb4", database="test")
    with pytest.raises(FatalError, match="as it is called later" if beside else "give it this name back") as told:
        renamed.rig.run()
    if beside:
        at_target(renamed, str(told.value))
    else:
        renamed.server.run("RENAME TABLE c TO a", database="test")
    with pytest.raises(FatalError, match=r"RENAME TABLE `test`.`a` TO `test`.`c`\.") as told:
        renamed.rig.run()
    at_target(renamed, str(told.value))
    renamed.rig.run()
    assert renamed.rig.comparison().equal


def test_a_table_that_has_none_of_its_names_at_the_target_is_not_to_be_made_anew(renamed: MariaDbRig) -> None:
    renamed.rig.write("ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (4, 'c')")
    renamed.server.run("RENAME TABLE a TO elsewhere", database="test")
    with pytest.raises(FatalError, match=r"has no table test\.c.*give it this name back"):
        renamed.rig.run()
    renamed.server.run("RENAME TABLE elsewhere TO c", database="test")
    renamed.rig.run()
    assert renamed.rig.comparison().equal


@gated
def test_a_column_that_was_renamed_ahead_of_its_rows_gets_its_name_back(renamed: MariaDbRig) -> None:
    renamed.rig.write("UPDATE a SET v = 'b'", "ALTER TABLE a RENAME v TO w", "INSERT INTO a VALUES (4, 'c')")
    renamed.server.run("ALTER TABLE a RENAME COLUMN v TO w", database="test")
    with pytest.raises(FatalError, match="column v is missing at the target") as told:
        renamed.rig.run()
    alter(renamed, str(told.value), "RENAME COLUMN `w` TO `v`")
    with pytest.raises(FatalError, match="cannot follow by itself") as told:
        renamed.rig.run()
    alter(renamed, str(told.value), "RENAME COLUMN `v` TO `w`")
    skip_as_the_hint_says(renamed.rig, told.value)
    renamed.rig.run()
    assert renamed.rig.comparison().equal


@gated
def test_a_column_that_is_there_under_both_of_its_names_is_told(renamed: MariaDbRig) -> None:
    renamed.rig.write("ALTER TABLE a RENAME v TO w", "INSERT INTO a VALUES (4, 'c')")
    renamed.server.run("ALTER TABLE a ADD COLUMN w varchar(20)", database="test")
    with pytest.raises(FatalError, match="has both v and w: ") as told:
        renamed.rig.run()
    renamed.server.run("UPDATE a SET w = v", database="test")
    skip_as_the_hint_says(renamed.rig, told.value)
    renamed.rig.run()
    assert renamed.rig.comparison().equal


@gated
def test_a_table_that_was_renamed_too_far_gets_its_names_in_turn(renamed: MariaDbRig) -> None:
    renamed.rig.write("ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (4, 'c')")
    renamed.rig.write("ALTER TABLE c RENAME TO d", "INSERT INTO d VALUES (5, 'd')")
    renamed.server.run("RENAME TABLE a TO d", database="test")
    for pair in ("`test`.`d` TO `test`.`c`", "`test`.`c` TO `test`.`d`"):
        with pytest.raises(FatalError, match=pair) as told:
            renamed.rig.run()
        at_target(renamed, str(told.value))
    renamed.rig.run()
    assert renamed.rig.comparison().equal


@gated
def test_a_refusal_tells_what_else_the_transaction_changed_which_a_run_that_skips_it_takes_as_done(
    renamed: MariaDbRig,
) -> None:
    add = [f"ALTER TABLE {name} ADD u varchar(20)" for name in "ab"]
    renamed.make(add, add)
    renamed.rig.write("INSERT INTO a VALUES (3, 'v', 'u')", "INSERT INTO b VALUES (3, 'v', 'u')")
    renamed.rig.having(ddl=DdlPolicy.SKIP).run()
    pairs = ("v TO x", "u TO v", "x TO u")
    swap = [f"ALTER TABLE {name} RENAME COLUMN {pair}" for name in "ab" for pair in pairs]
    renamed.rig.transaction(*swap, *(f"INSERT INTO {name} (id, v, u) VALUES (4, 'v', 'u')" for name in "ab"))
    with pytest.raises(FatalError, match=r"table public.a\].*so first do that: public.b: the table's def") as told:
        renamed.rig.run()
    renamed.server.run(";".join(swap), database="test")
    skip_as_the_hint_says(renamed.rig, told.value)
    renamed.rig.run()
    assert renamed.rig.comparison().equal
