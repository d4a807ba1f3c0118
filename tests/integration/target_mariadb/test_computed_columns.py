"""Columns that both sides compute: not sent, and by expressions that no text tells to be the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.mariadb_rig import MariaDbRig
from tests.support.rig import skip_as_the_hint_says
from tests.support.variants import gated

TABLE = "CREATE TABLE t (id integer PRIMARY KEY, a integer, n integer GENERATED ALWAYS AS ({}) STORED)"


def vouched(maria: MariaDbRig) -> MariaDbRig:
    """With a connection that says of the column what nobody can see."""
    url = f"{maria.rig.target_dsn}?computed_alike=public.other.n,%20public.t.n"
    return replace(maria, rig=replace(maria.rig, target_dsn=url))


@gated
def test_one_that_nobody_vouches_for_is_refused_with_both_expressions_and_what_leads_on(maria: MariaDbRig) -> None:
    maria.make([TABLE.format("a * 2")], [TABLE.format("a * 3")])
    with pytest.raises(FatalError, match=r"column n is computed by both sides.*`a` \* 3.*a \* 2") as refused:
        maria.rig.prepare()
    assert "computed_alike=public.t.n" in str(refused.value)
    maria.server.run("ALTER TABLE t DROP COLUMN n", database="test")
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t VALUES (1, 2)")
    maria.rig.run()
    assert maria.rig.comparison().equal


def test_one_that_is_vouched_for_is_computed_by_the_target(maria: MariaDbRig) -> None:
    maria = vouched(maria)
    maria.make([TABLE.format("a * 2")], [TABLE.format("2 * a")])
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t VALUES (1, 2)", "UPDATE t SET a = 5")
    maria.rig.run()
    maria.require_equal("SELECT id, a, n FROM t")
    assert maria.rig.comparison().equal


@gated
def test_one_that_is_made_between_runs_stops_the_next_one(maria: MariaDbRig) -> None:
    maria.make([TABLE.format("a * 2")], ["CREATE TABLE t (id integer PRIMARY KEY, a integer)"])
    maria.rig.prepare()
    maria.server.run("ALTER TABLE t ADD n integer GENERATED ALWAYS AS (a * 3)", database="test")
    maria.rig.write("INSERT INTO t VALUES (1, 2)")
    for ddl in (DdlPolicy.REFUSE, DdlPolicy.SKIP):
        with pytest.raises(FatalError, match="column n is computed by both sides"):
            maria.rig.having(ddl=ddl).run()
    assert maria.read("SELECT id FROM t") == []
    vouched(maria).rig.run()
    assert maria.read("SELECT id, n FROM t") == [("1", "6")], "what somebody vouched for is theirs"


@gated
def test_an_expression_that_the_source_changes_is_vouched_for_anew(maria: MariaDbRig) -> None:
    maria = vouched(maria)
    maria.make([TABLE.format("a * 2")], [TABLE.format("a * 2")])
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t VALUES (1, 2)")
    maria.rig.run()
    maria.rig.write("ALTER TABLE t ALTER n SET EXPRESSION AS (a * 3)", "INSERT INTO t VALUES (2, 2)")
    with pytest.raises(FatalError, match=r"the source has column n as .*a \* 3") as refused:
        maria.rig.run()
    maria.server.run("ALTER TABLE t MODIFY n integer GENERATED ALWAYS AS (a * 3) STORED", database="test")
    skip_as_the_hint_says(maria.rig, refused.value)
    maria.rig.run()
    maria.require_equal("SELECT id, a, n FROM t")
    assert maria.rig.comparison().equal


@gated
@pytest.mark.parametrize(
    ("changes", "said", "older"),
    [
        (("DROP n", "ADD n integer DEFAULT 5"), "DROP COLUMN `n`, ADD COLUMN `n` int DEFAULT '5'", None),
        pytest.param(
            ("ALTER n DROP EXPRESSION",), "copy the values that older rows have in n", 4, marks=pytest.mark.long
        ),
        pytest.param(
            ("DROP n, ADD n integer DEFAULT 5",), "DROP COLUMN `n`, ADD COLUMN `n` int", 5, marks=pytest.mark.long
        ),
    ],
)
def test_one_that_the_source_computes_no_more_becomes_a_plain_one_as_the_hint_says(
    maria: MariaDbRig, changes: tuple[str, ...], said: str, older: int | None
) -> None:
    maria = vouched(maria)
    maria.make([TABLE.format("a * 2")], [TABLE.format("a * 2")])
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t (id, a) VALUES (1, 2)")
    for number, change in enumerate(changes, 2):
        maria.rig.run()
        maria.rig.write(f"ALTER TABLE t {change}", f"INSERT INTO t (id, a) VALUES ({number}, 2)")
    with pytest.raises(FatalError, match="cannot follow by itself") as refused:
        maria.rig.run()
    assert said in str(refused.value)
    (found,) = re.findall(r"At the target: (ALTER TABLE .*?)\. ", f"{refused.value} ")
    maria.server.run(found, database="test")
    if older is not None:
        maria.server.run(f"UPDATE t SET n = {older}", database="test")
    skip_as_the_hint_says(maria.rig, refused.value)
    maria.rig.run()
    maria.require_equal("SELECT id, a, n FROM t")
