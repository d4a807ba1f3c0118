"""Triggers and rules of the target do not act on older rows that get what they have in a new column."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute
from tests.support.variants import variants

CHANGE = "ALTER TABLE t ADD COLUMN c integer DEFAULT 5"
TOUCHES = "CREATE TRIGGER touches BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION touch()"
KEEPS = "CREATE RULE keeps AS ON UPDATE TO t DO INSTEAD NOTHING"
COPIES = "CREATE RULE copies AS ON UPDATE TO t DO ALSO INSERT INTO u VALUES (NEW.id + 100)"


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a text)", "CREATE TABLE u (id integer PRIMARY KEY)")
    execute(
        rig.target_dsn,
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.a := 9; RETURN NEW; END'",
    )
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i FROM generate_series(1, 20) i", "INSERT INTO u VALUES (1)")
    rig.run()
    return rig


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


@pytest.mark.parametrize("guard", variants([TOUCHES, KEEPS, COPIES], seldom=[TOUCHES]))
def test_the_statement_of_the_hint_keeps_them_from_it(rig: Rig, guard: str) -> None:
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    rig.write(CHANGE, "INSERT INTO t VALUES (21, 'x', 7)")
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN c integer", guard)
    with pytest.raises(FatalError, match=r"c of public\.t was added as integer and holds .*5.*(?s:.*)UPDATE") as told:
        rig.run()
    execute(rig.target_dsn, str(told.value).split("rows are the source's (")[1].split("), then run again")[0])
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize("ddl", variants([DdlPolicy.APPLY, DdlPolicy.SKIP, DdlPolicy.REFUSE], seldom=[DdlPolicy.APPLY]))
@pytest.mark.parametrize("guard", variants([TOUCHES, KEEPS, COPIES], seldom=[TOUCHES, COPIES]))
def test_those_that_would_act_on_a_replica_s_rows_stop_the_run(rig: Rig, guard: str, ddl: DdlPolicy) -> None:
    rig = rig.having(ddl=ddl)
    always = re.sub(r"CREATE (TRIGGER|RULE) (\w+) .*", r"ALTER TABLE t ENABLE ALWAYS \1 \2", guard)
    execute(rig.target_dsn, "ALTER TABLE t ADD COLUMN c integer", guard, always)
    rig.write(CHANGE, "INSERT INTO t VALUES (21, 'x', 7)")
    with pytest.raises(
        FatalError, match=r"the (trigger|rule) (touches|keeps|copies)\b.* would act on older rows"
    ) as told:
        rig.run()
    execute(rig.target_dsn, str(told.value).split("Run ")[1].split("; then")[0])
    if ddl is DdlPolicy.REFUSE:
        with pytest.raises(FatalError, match="UPDATE") as told:
            rig.run()
        execute(rig.target_dsn, str(told.value).split("rows are the source's (")[1].split("), then run again")[0])
    rig.run()
    assert_equal(rig)
