"""Partitions that come and go: the hint of the capture that stops leads to a copy, and that to equal tables."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from tests.integration.copy.recopying import again, require_green_and_equal, rig_of_two_tables  # noqa: F401  # a fixture
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants

PARTITIONED = (
    "CREATE TABLE p (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
)
RECIPES = {
    "attached with rows": (
        "CREATE TABLE p_2 (id integer PRIMARY KEY, v text)",
        "INSERT INTO p_2 SELECT i, 'loaded' FROM generate_series(100, 150) i",
        "ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES FROM (100) TO (200)",
    ),
    "detached": (
        "CREATE SCHEMA elsewhere",
        "ALTER TABLE p DETACH PARTITION p_1",
        "ALTER TABLE p_1 SET SCHEMA elsewhere",
    ),
    "attached, filled and detached": (
        "CREATE TABLE p_2 (id integer PRIMARY KEY, v text)",
        "INSERT INTO p_2 SELECT i, 'loaded' FROM generate_series(100, 150) i",
        "ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p SELECT i, 'through' FROM generate_series(90, 98) i",
        "INSERT INTO p SELECT i, 'through' FROM generate_series(160, 170) i",
        "ALTER TABLE p DETACH PARTITION p_2",
        "DROP TABLE p_2",
    ),
    "one partition truncated": ("TRUNCATE p_1",),
    "one partition truncated while nobody was told": (
        """ALTER PUBLICATION "parallel_apply_p.parts" SET (publish = 'insert')""",
        "TRUNCATE p_1",
        """ALTER PUBLICATION "parallel_apply_p.parts" SET (publish = 'truncate')""",
    ),
    "one partition truncated under another name of what tells it": (
        'ALTER PUBLICATION "parallel_apply_p.parts" RENAME TO lent',
        "TRUNCATE p_1",
        'ALTER PUBLICATION lent RENAME TO "parallel_apply_p.parts"',
    ),
    "new, and emptied while it was detached": (
        "CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p VALUES (150, 'sent'), (151, 'sent')",
        "ALTER TABLE p DETACH PARTITION p_2",
        "DELETE FROM p_2",
        "ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES FROM (100) TO (200)",
    ),
    "new, and truncated while nobody was told": (
        'ALTER PUBLICATION "parallel_apply_p.parts" DROP TABLE ONLY p',
        "CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
        "TRUNCATE p",
        "INSERT INTO p VALUES (7, 'sent'), (150, 'sent')",
        "TRUNCATE p_2",
    ),
    "new, and truncated by what made it, while nobody was told": (
        'DROP PUBLICATION "parallel_apply_p.parts"',
        "DO $$ BEGIN CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (100) TO (200); "
        "INSERT INTO p VALUES (150, 'sent'); TRUNCATE p_2; INSERT INTO p VALUES (151, 'sent, and stays'); END $$",
    ),
    "made anew": ("DROP TABLE p", *PARTITIONED, "INSERT INTO p VALUES (7, 'new')"),
    "out of the publication and in again": (
        "ALTER PUBLICATION parallel_apply_p DROP TABLE p",
        "UPDATE p SET v = 'unpublished'",
        "ALTER PUBLICATION parallel_apply_p ADD TABLE ONLY p",
    ),
    "publishes less": ("ALTER PUBLICATION parallel_apply_p SET (publish = 'insert')", "UPDATE p SET v = 'x'"),
    "publishes partitions under their own names": (
        "ALTER PUBLICATION parallel_apply_p SET (publish_via_partition_root = false)",
        "INSERT INTO p VALUES (97, 'under the partition''s name')",
    ),
}
IN_SHORT = (
    "one partition truncated while nobody was told",
    "attached, filled and detached",
    "new, and emptied while it was detached",
    "new, and truncated by what made it, while nobody was told",
    "publishes partitions under their own names",
)


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(name, marks=GATED if name in IN_SHORT else pytest.mark.long) for name in RECIPES],
)
def test_following_the_hint_of_a_stopped_capture_leads_to_green_and_equal(rig: Rig, recipe: str) -> None:
    rig.write(*PARTITIONED)
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    rig.write("INSERT INTO p SELECT i, 'first' FROM generate_series(1, 50) i")
    require_green_and_equal(rig)
    rig.write("UPDATE p SET v = 'below' WHERE id < 10", *RECIPES[recipe])
    with pytest.raises(ParallelApplyError) as stopped:
        rig.run()
    command = re.search(r"parallel-apply recopy --pipeline p ((?:--table [\w.]+ ?)+)", stopped.value.hint or "")
    assert command, stopped.value
    again(rig, *(name.rpartition(".")[2] for name in command[1].split()[1::2]))
    rig.write("DELETE FROM t WHERE id < 5")
    require_green_and_equal(rig)
    if recipe != "detached":
        rig.write("INSERT INTO p VALUES (99, 'last')", "UPDATE p SET v = 'behind' WHERE id = 7")
        require_green_and_equal(rig)


@gated
def test_rows_that_lay_in_a_partition_of_another_table_by_now_are_missed(rig: Rig) -> None:
    rig.write(*PARTITIONED, "CREATE TABLE q (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    for table in ("p", "q"):
        execute(rig.target_dsn, f"CREATE TABLE {table} (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    rig.write(
        "CREATE TABLE moving PARTITION OF p FOR VALUES FROM (100) TO (200)",
        "INSERT INTO p VALUES (100, 'moves')",
        "ALTER TABLE p DETACH PARTITION moving",
        "ALTER TABLE q ATTACH PARTITION moving FOR VALUES FROM (100) TO (200)",
        "INSERT INTO q VALUES (101, 'there')",
    )
    with pytest.raises(ParallelApplyError, match=r"moving was attached with rows.*recopy .*--table public\.q"):
        rig.run()
    again(rig, "q")
    with pytest.raises(ParallelApplyError, match=r"rows of public\.p were written to .*moving.*--table public\.p"):
        rig.run()
    again(rig, "p")
    require_green_and_equal(rig)


@pytest.mark.parametrize("emptied", ["TRUNCATE p", pytest.param("VACUUM FULL p_2", marks=pytest.mark.long)])
def test_a_new_partition_whose_rows_went_with_all_others_is_followed(rig: Rig, emptied: str) -> None:
    rig.write(*PARTITIONED)
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    rig.write("CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (100) TO (200)")
    if emptied == "TRUNCATE p":
        rig.write("INSERT INTO p VALUES (1, 'sent'), (150, 'sent')")
    rig.write(emptied)
    require_green_and_equal(rig)


@gated
@pytest.mark.parametrize("rewritten", ["TRUNCATE p", pytest.param("VACUUM FULL p_1", marks=pytest.mark.long)])
@pytest.mark.parametrize("grown", ["p", pytest.param("q", marks=pytest.mark.long)])
def test_a_new_partition_puts_no_other_one_in_doubt(rig: Rig, grown: str, rewritten: str) -> None:
    rig.write(*PARTITIONED, "CREATE TABLE q (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)")
    for table in ("p", "q"):
        execute(rig.target_dsn, f"CREATE TABLE {table} (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    rig.write("INSERT INTO p SELECT i, 'first' FROM generate_series(1, 50) i")
    require_green_and_equal(rig)
    rig.write(
        rewritten,
        f"CREATE TABLE new PARTITION OF {grown} FOR VALUES FROM (100) TO (200)",
        f"INSERT INTO {grown} VALUES (100, 'new')",
    )
    require_green_and_equal(rig)


@gated
@pytest.mark.parametrize("altered", ["publish = 'insert'", "publish_via_partition_root"])
def test_truncations_are_told_again_by_a_publication_that_somebody_altered(rig: Rig, altered: str) -> None:
    rig.write(*PARTITIONED)
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    rig.write(
        f'ALTER PUBLICATION "parallel_apply_p.parts" SET ({altered})',
        "INSERT INTO p SELECT i, 'first' FROM generate_series(1, 50) i",
    )
    require_green_and_equal(rig)
    rig.write("TRUNCATE p_1")
    with pytest.raises(ParallelApplyError, match=r"partitions of public\.p changed.*recopy .*--table public\.p"):
        rig.run()
    again(rig, "p")
    require_green_and_equal(rig)


@gated
@pytest.mark.parametrize("policy", [DdlPolicy.REFUSE, pytest.param(DdlPolicy.APPLY, marks=pytest.mark.long)])
def test_a_detached_partition_is_followed_as_a_table_of_its_own_once_it_is_one_at_the_target(
    rig: Rig, policy: DdlPolicy
) -> None:
    rig = rig.having(ddl=policy)
    rig.both(*PARTITIONED)
    require_green_and_equal(rig)
    rig.write("INSERT INTO p VALUES (1, 'one')")
    require_green_and_equal(rig)
    rig.write("ALTER TABLE p DETACH PARTITION p_1")
    with pytest.raises(ParallelApplyError, match="detached"):
        rig.run()
    again(rig, "p")
    with pytest.raises(ConfigurationError, match=r"new tables with rows.*p_1"):
        rig.run()
    rig.write("ALTER TABLE p_1 ADD w integer")
    with pytest.raises(ParallelApplyError, match=r"p_1 is a partition of public\.p at the target") as refused:
        again(rig, "p_1")
    commands = (refused.value.hint or "").partition("Run ")[2].partition(". ")[0].split("; ")
    assert 'ALTER TABLE "public"."p" DETACH PARTITION "public"."p_1"' in commands
    execute(rig.target_dsn, *commands)
    again(rig, "p_1")
    require_green_and_equal(rig)
    attach = "ALTER TABLE p ATTACH PARTITION p_1 FOR VALUES FROM (0) TO (100)"
    execute(rig.target_dsn, "ALTER TABLE p ADD w integer", attach)
    rig.write("INSERT INTO p_1 VALUES (2, 'two')")
    with pytest.raises(ConfigurationError, match="is a partition of"):
        rig.run()
    assert any("is a partition of" in one.what for one in check_pipeline(rig.config, rig.source, rig.target).findings)


@gated
def test_a_partition_that_was_copied_by_itself_comes_back(rig: Rig) -> None:
    rig.write(*PARTITIONED)
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    rig.write("INSERT INTO p SELECT i, 'first' FROM generate_series(1, 9) i", "ALTER TABLE p DETACH PARTITION p_1")
    execute(rig.target_dsn, "CREATE TABLE p_1 (id integer PRIMARY KEY, v text)")
    with pytest.raises(ParallelApplyError, match="detached"):
        rig.run()
    again(rig, "p")
    again(rig, "p_1")
    require_green_and_equal(rig)
    rig.write(
        "INSERT INTO p_1 VALUES (10, 'by itself')", "ALTER TABLE p ATTACH PARTITION p_1 FOR VALUES FROM (0) TO (100)"
    )
    with pytest.raises(ParallelApplyError, match=r"p_1 was attached with rows"):
        rig.run()
    execute(rig.target_dsn, "DROP TABLE p_1")
    again(rig, "p")
    rig.write("INSERT INTO p VALUES (11, 'back')")
    require_green_and_equal(rig)


@gated
def test_a_partition_that_is_gone_asks_for_no_copy(rig: Rig) -> None:
    rig.write(*PARTITIONED)
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    again(rig, "p")
    rig.write("INSERT INTO p VALUES (1, 'one')")
    require_green_and_equal(rig)
    rig.write("ALTER TABLE p DETACH PARTITION p_1", "DROP TABLE p_1")
    with pytest.raises(ParallelApplyError, match=r"p_1 was detached or dropped"):
        rig.run()
    again(rig, "p")
    rig.write("DELETE FROM t WHERE id < 5")
    require_green_and_equal(rig)


ATTACH = "ALTER TABLE p ATTACH PARTITION s FOR VALUES FROM (100) TO (200)"
THROUGH = "INSERT INTO p SELECT i, 'through' FROM generate_series(150, 160) i"
DETACH = "ALTER TABLE p DETACH PARTITION s"
FOR_A_WHILE = {
    "with rows": (["INSERT INTO s VALUES (100, 'own')"], [ATTACH], [THROUGH], [DETACH]),
    "empty": ([ATTACH], [THROUGH], [DETACH]),
    "between two runs": ([ATTACH, THROUGH, DETACH],),
    "with its rows written again": (
        ["INSERT INTO s VALUES (100, 'own')", ATTACH, "UPDATE p SET v = 'through'", DETACH],
    ),
}


@gated
@pytest.mark.parametrize("case", variants(FOR_A_WHILE, seldom=["empty", "with its rows written again"]))
def test_a_table_that_is_a_partition_of_another_one_for_a_while_has_its_rows_behind_it(rig: Rig, case: str) -> None:
    rig.write(*PARTITIONED)
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY, v text)")
    rig.both("CREATE TABLE s (id integer PRIMARY KEY, v text)")
    require_green_and_equal(rig)
    for statements in FOR_A_WHILE[case]:
        rig.write(*statements)
        follow_to_green_and_equal(rig)
    rig.write("INSERT INTO s VALUES (101, 'behind')", "UPDATE s SET v = 'behind' WHERE id = 155")
    require_green_and_equal(rig)


def follow_to_green_and_equal(rig: Rig) -> None:
    for _ in range(3):
        try:
            rig.run()
            break
        except ParallelApplyError as stopped:
            names = re.findall(r"--table public\.(\w+)", stopped.hint or "")
            if not names:
                raise
            again(rig, *names)
    comparison = rig.comparison()
    assert comparison.equal, comparison
