"""Rows that a transaction writes before it changes their table, where somebody has changed the target's by hand: they
are those of a definition that the target's table has no more.
"""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.migrations.renaming import forget
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

CHANGES = {
    "renamed": ("ALTER TABLE t RENAME v TO w",),
    "dropped": ("ALTER TABLE t DROP v",),
    "dropped, with another one": ("ALTER TABLE t DROP v, ADD w integer DEFAULT 5",),
    "exchanged": (
        "ALTER TABLE t RENAME v TO x",
        "ALTER TABLE t RENAME u TO v",
        "ALTER TABLE t RENAME x TO u",
    ),
    "of another table": ("ALTER TABLE t RENAME TO t2", "ALTER TABLE t2 RENAME v TO w"),
    "filled": ("ALTER TABLE t ADD w integer DEFAULT 5",),
    "of another type": ("ALTER TABLE t ALTER v TYPE varchar(20)",),
}


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text, u text)")
    rig.write("INSERT INTO t VALUES (1, 'v1', 'u1'), (2, 'v2', 'u2'), (3, 'v3', 'u3')")
    rig.run()
    return rig


def give_other_types(rig: Rig, wide: str) -> None:
    """To v and u, which are empty then."""
    rig.both("ALTER TABLE t DROP v, DROP u", f"ALTER TABLE t ADD v {wide}, ADD u integer")
    rig.write("INSERT INTO t (id) VALUES (4)")
    rig.having(ddl=DdlPolicy.SKIP).run()


def change(rig: Rig, *statements: str) -> None:
    """Rows come, change and go before the statements, and one comes behind them."""
    name = "t2" if "t2" in "".join(statements) else "t"
    rig.transaction(
        "INSERT INTO t VALUES (11, 'v11', 'u11'), (12, 'v12', 'u12')",
        "UPDATE t SET v = 'changed' WHERE id = 1",
        "UPDATE t SET id = 20 WHERE id = 2",
        "DELETE FROM t WHERE id IN (3, 12)",
        *statements,
        f"INSERT INTO {name} (id) VALUES (30)",
    )
    with pytest.raises(FatalError):
        rig.run()


@pytest.mark.parametrize("what", variants(CHANGES, seldom=["renamed", "dropped", "filled", "of another type"]))
def test_they_arrive_under_the_definition_that_the_target_has_by_now(rig: Rig, what: str) -> None:
    change(rig, *CHANGES[what])
    execute(rig.target_dsn, *CHANGES[what])
    rig.having(ddl=DdlPolicy.SKIP).run()
    assert rig.comparison().equal
    rig.write("UPDATE {} SET id = id + 100".format("t2" if what == "of another table" else "t"))
    rig.run()
    assert rig.comparison().equal


@pytest.mark.parametrize(
    "what", variants(CHANGES, seldom=["renamed", "dropped", "exchanged", "of another table", "of another type"])
)
def test_rows_told_apart_by_all_their_values_are_found_under_it(rig: Rig, what: str) -> None:
    rig.both("ALTER TABLE t DROP CONSTRAINT t_pkey")
    execute(rig.source_dsn, "ALTER TABLE t REPLICA IDENTITY FULL")
    rig.write("INSERT INTO t VALUES (4, 'v4', 'u4')")
    rig.run()
    change(rig, *CHANGES[what])
    execute(rig.target_dsn, *CHANGES[what])
    rig.having(ddl=DdlPolicy.SKIP).run()
    assert rig.comparison().equal


@gated
def test_rows_that_the_new_type_prints_otherwise_are_copied(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("ALTER TABLE t ADD n numeric(6,2)")
    rig.transaction("UPDATE t SET n = 1.5", "ALTER TABLE t ALTER n TYPE numeric(6,3)", "UPDATE t SET v = 'w'")
    with pytest.raises(FatalError, match=r"column n of public\.t became") as refused:
        rig.run()
    execute(rig.target_dsn, str(refused.value).split("rows are the source's (")[1].split("), then run again")[0])
    with pytest.raises(FatalError, match=r"nothing tells what they have in n(?s:.*)No change .* by hand(?s:.*)recopy"):
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.run()
    assert rig.comparison().equal


SEEN = {
    "renamed": CHANGES["renamed"],
    "dropped": CHANGES["dropped"],
    "dropped, with another one": CHANGES["dropped, with another one"],
    "exchanged, of other types": CHANGES["exchanged"],
    "of another table": CHANGES["of another table"],
}


@pytest.mark.parametrize("ddl", variants([DdlPolicy.REFUSE, DdlPolicy.APPLY], seldom=[DdlPolicy.APPLY]))
@pytest.mark.parametrize("what", variants(SEEN, seldom=["dropped", "dropped, with another one", "of another table"]))
def test_where_the_table_shows_that_it_was_changed_they_arrive_without_being_skipped(
    rig: Rig, what: str, ddl: DdlPolicy
) -> None:
    if "other types" in what:
        give_other_types(rig, "text")
    rig.transaction(
        "INSERT INTO t VALUES (11, '12', '7')",
        "UPDATE t SET v = '5' WHERE id = 1",
        "UPDATE t SET id = 20 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        *SEEN[what],
        "INSERT INTO {} (id) VALUES (30)".format("t2" if what == "of another table" else "t"),
    )
    with pytest.raises(FatalError):
        rig.run()
    execute(rig.target_dsn, *SEEN[what])
    rig.having(ddl=ddl).run()
    assert rig.comparison().equal


AHEAD = {"merged": "UPDATE t SET v = '5' WHERE id = 1", "straight": "INSERT INTO t VALUES (11, '12', 7)"}


@gated
@pytest.mark.parametrize("wide", variants(["text", "bigint"], seldom=["bigint"]))
@pytest.mark.parametrize("written", AHEAD)
def test_rows_that_come_behind_columns_that_took_each_others_names_are_told(rig: Rig, written: str, wide: str) -> None:
    give_other_types(rig, wide)
    # Their types tell them where nothing else does.
    forget(rig)
    rig.write(AHEAD[written])
    rig.both(*CHANGES["exchanged"])
    rig.write("INSERT INTO t (id) VALUES (30)")
    with pytest.raises(FatalError, match=r"taken each other's names at the target before the rows came"):
        rig.run()
    execute(rig.target_dsn, *CHANGES["exchanged"])
    with pytest.raises(FatalError, match="took each other's names"):
        rig.run()
    execute(rig.target_dsn, *CHANGES["exchanged"])
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_column_that_nothing_tells_their_values_of_is_copied_anew(rig: Rig) -> None:
    again = ("ALTER TABLE t DROP v", "ALTER TABLE t ADD v text")
    change(rig, *again)
    execute(rig.target_dsn, *again)
    skipping = rig.having(ddl=DdlPolicy.SKIP)
    with pytest.raises(FatalError, match=r"wrote rows of it before that.*what they have in \w since.*recopy .*--table"):
        skipping.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    skipping.run()
    assert rig.comparison().equal


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (["ALTER TABLE t RENAME v TO w"], ["ALTER TABLE t RENAME w TO v"]),
        pytest.param(["ALTER TABLE t RENAME TO t2"], ["ALTER TABLE t2 RENAME TO t"], marks=pytest.mark.long),
    ],
)
def test_a_change_that_is_undone_in_its_transaction_is_no_change_by_hand(
    rig: Rig, there: list[str], back: list[str]
) -> None:
    name = "t2" if "t2" in there[0] else "t"
    rig.transaction(
        "INSERT INTO t VALUES (11, 'v11', 'u11')",
        *there,
        f"INSERT INTO {name} VALUES (12, 'v12', 'u12')",
        *back,
        "INSERT INTO t VALUES (13, 'v13', 'u13')",
    )
    rig.having(ddl=DdlPolicy.APPLY).run()
    assert rig.comparison().equal
