"""Tables, and types of their columns, that are gone at the source before the target has taken their rows."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, SourceError, TargetError
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.hunt.commands import invoked
from tests.integration.copy.recopying import (
    again,
    require_green_and_equal,
    rig_of_two_tables,  # noqa: F401  # a fixture
)
from tests.support.rig import Rig, execute
from tests.support.variants import gated


def follow(rig: Rig, told: str) -> str:
    """The command that is printed, whole but for the connections; what it says."""
    found = re.search(r"`(parallel-apply recopy --pipeline p [^`]+)`", told)
    assert found is not None, told
    result = invoked(rig, found[1])
    assert result.exit_code == 0, result.output
    return result.output


def test_what_the_log_has_of_a_table_that_is_dropped_is_passed_over(rig: Rig) -> None:
    rig.run()
    execute(rig.target_dsn, "DELETE FROM t WHERE id = 7")
    rig.write("UPDATE t SET v = 'new'", "UPDATE u SET v = 'new' WHERE id < 5")
    with pytest.raises(TargetError, match=r"not in the target") as refused:
        rig.run()
    rig.write("INSERT INTO t VALUES (101, 'not captured')", "DROP TABLE t", "DELETE FROM u WHERE id > 95")
    assert "gone at the source" in follow(rig, str(refused.value))
    # By these a source that is restored to when it had the table is told from one that has dropped it.
    assert all(one.marked_offset for one in open_reader(rig.config.log_url).state().passed_over)
    require_green_and_equal(rig)
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'another one')")
    with pytest.raises(SourceError, match=r"public\.t was dropped and created again") as refused_again:
        rig.run()
    follow(rig, str(refused_again.value))
    require_green_and_equal(rig)


@gated
def test_a_definition_that_nobody_can_follow_any_more_is_passed_over(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    drop, send = "DROP TABLE public.t", rig.ddl("DROP TABLE public.t")
    rig.write("ALTER TABLE t ADD c uuid DEFAULT gen_random_uuid()", "UPDATE t SET v = 'new' WHERE id < 3")
    with pytest.raises(FatalError, match="recopy") as refused:
        rig.run()
    rig.transaction(drop, send, "UPDATE u SET v = 'new' WHERE id < 5")
    follow(rig, str(refused.value))
    require_green_and_equal(rig)


@gated
def test_the_name_of_a_table_that_is_gone_passes_over_nothing_of_one_that_had_it_before(rig: Rig) -> None:
    rig.run()
    execute(rig.target_dsn, "DELETE FROM t WHERE id = 7")
    rig.write("UPDATE t SET v = 'new'", "ALTER TABLE t RENAME TO b", "INSERT INTO b VALUES (500, 'b')")
    with pytest.raises(TargetError, match=r"not in the target"):
        rig.run()
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    with pytest.raises(TargetError, match=r"not in the target"):
        rig.run()
    rig.write("INSERT INTO t VALUES (1, 'another one')")
    with pytest.raises(TargetError, match=r"not in the target") as refused:
        rig.run()
    rig.write("DROP TABLE t")
    assert "--table public.t" in str(refused.value)
    with pytest.raises(ConfigurationError, match="renames of these tables' names") as again_refused:
        again(rig, "t")
    execute(rig.target_dsn, "ALTER TABLE t RENAME TO b")
    follow(rig, str(again_refused.value))
    with pytest.raises(TargetError, match="the target has no such table") as missing:
        rig.run()
    follow(rig, str(missing.value))
    require_green_and_equal(rig)


@gated
def test_a_table_that_is_named_by_mistake_is_refused(rig: Rig) -> None:
    rig.run()
    with pytest.raises(ConfigurationError, match=r"no table public\.x that can be followed"):
        again(rig, "x", "t")


@gated
def test_a_column_whose_type_is_gone_before_the_target_has_it_is_not_waited_for(rig: Rig) -> None:
    rig.run()
    rig.write(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')", "ALTER TABLE t ADD m mood DEFAULT 'ok'", "UPDATE t SET v = 'a'",
        "ALTER TABLE t DROP m", "DROP TYPE mood",
    )  # fmt: skip
    with pytest.raises(FatalError, match=r"lacks the type public\.mood.* If the source has it no more") as refused:
        rig.run()
    follow(rig, str(refused.value))
    require_green_and_equal(rig)


@gated
def test_a_table_that_lost_all_columns_is_still_a_table(rig: Rig) -> None:
    rig.run()
    rig.write("DROP TABLE t", "CREATE TABLE t (a integer, b text)", "INSERT INTO t VALUES (1, 'another')")
    with pytest.raises(SourceError, match=r"public\.t was dropped and created again"):
        rig.run()
    for lacking in (
        "columns that the source has renamed or dropped",
        r"t lacks the column a; public\.t lacks the column b",
    ):
        with pytest.raises(FatalError, match=lacking) as refused:
            again(rig, "t")
        execute(rig.target_dsn, *re.findall(r'ALTER TABLE [^;]+? COLUMN "\w+"(?: integer| text)?', str(refused.value)))
    again(rig, "t")
    require_green_and_equal(rig)


@gated
def test_the_name_of_a_table_that_is_gone_may_become_a_partition_s(rig: Rig) -> None:
    rig.run()
    rig.write(
        "DROP TABLE t",
        "CREATE TABLE p (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE t (id integer PRIMARY KEY, v text)",
        "ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (0) TO (100)",
        "INSERT INTO t VALUES (1, 'a part')",
    )
    made = "`parallel-apply recopy --pipeline p --table public.p --create-tables`"
    refused = invoked(rig, made.strip("`"))
    assert "Drop what has that name at the target" in refused.output
    execute(rig.target_dsn, "DROP TABLE t")
    follow(rig, made)
    require_green_and_equal(rig)
    rig.write("ALTER TABLE p DETACH PARTITION t", "INSERT INTO t VALUES (2, 'a table again')")
    with pytest.raises(SourceError, match=r"public\.t was dropped and created again") as detached:
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE p DETACH PARTITION t")
    follow(rig, str(detached.value))
    require_green_and_equal(rig)


@gated
def test_the_partitions_of_a_table_that_is_gone_are_nobody_s_matter(rig: Rig) -> None:
    made = "CREATE TABLE p (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)"
    rig.both(made)
    execute(rig.target_dsn, "CREATE TABLE p_all PARTITION OF p DEFAULT")
    rig.run()
    part = "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)"
    rig.write(part, "INSERT INTO p VALUES (1, 'gone')", "DROP TABLE p", "UPDATE u SET v = 'new' WHERE id < 5")
    require_green_and_equal(rig)
    rig.write(made, part, "INSERT INTO p VALUES (2, 'another')")
    with pytest.raises(SourceError, match=r"public\.p was dropped and created again") as refused:
        rig.run()
    follow(rig, str(refused.value))
    require_green_and_equal(rig)
