"""Partitioned tables whose replica identity is FULL, and not that of their partitions: the hint leads to green."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_FULL = "ALTER TABLE t REPLICA IDENTITY FULL"
_ROWS = "INSERT INTO t VALUES (1, 'a'), (200, 'b')"
_CHANGE = "UPDATE t SET v = 'c' WHERE id = 1"
_DROP_KEY = "ALTER TABLE t DROP CONSTRAINT t_pkey"
KEY = ", PRIMARY KEY (id)"
CASES = {
    "no key": ("", [_FULL, _ROWS]),
    "a key that is made anew": (KEY, [_ROWS, _FULL, _CHANGE, _DROP_KEY, "ALTER TABLE t ADD PRIMARY KEY (id)"]),
    "a key that is gone": (KEY, [_ROWS, _FULL, _CHANGE, _DROP_KEY]),
    "rows behind it": (KEY, [_ROWS, _FULL, _CHANGE, _DROP_KEY, "INSERT INTO t VALUES (7, 'd')"]),
}


@pytest.mark.parametrize(
    "case", ["rows behind it", *(pytest.param(case, marks=pytest.mark.long) for case in CASES if case[0] != "r")]
)
def test_a_partitioned_table_whose_rows_were_sent_in_part_is_copied_anew(rig: Rig, case: str) -> None:
    key, statements = CASES[case]
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both(
        f"CREATE TABLE t (id integer NOT NULL, v text{key}) PARTITION BY RANGE (id)",
        'CREATE TABLE "T 0" PARTITION OF t FOR VALUES FROM (0) TO (100)',
        "CREATE TABLE t_rest PARTITION OF t DEFAULT PARTITION BY HASH (id)",
        "CREATE TABLE t_r0 PARTITION OF t_rest FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
    )
    rig.run()
    rig.write(*statements)
    for _ in range(4):
        try:
            rig.run()
            break
        except FatalError as error:
            follow(rig, str(error))
    rig.write("INSERT INTO t VALUES (5, 'a'), (205, 'b')", "UPDATE t SET v = 'e' WHERE id = 5")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_partition_that_tells_rows_by_other_columns_is_named_and_the_hint_leads_on(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY, v integer NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t DEFAULT",
    )
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i FROM generate_series(1, 9) i")
    rig.run()
    rig.write("CREATE UNIQUE INDEX own ON t1 (v)", "ALTER TABLE t1 REPLICA IDENTITY USING INDEX own")
    rig.write("DELETE FROM t WHERE id = 7")
    with pytest.raises(FatalError, match=r"without its key.*a replica identity of its own") as told:
        rig.run()
    rig.write("ALTER TABLE t1 REPLICA IDENTITY DEFAULT")
    follow(rig, str(told.value))
    rig.write("DELETE FROM t WHERE id = 8")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_key_of_a_partition_alone_is_none_of_the_table_and_the_hint_leads_on(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE t (id integer NOT NULL, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t (PRIMARY KEY (id)) DEFAULT",
    )
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'")
    with pytest.raises(FatalError, match="without a usable key") as told:
        rig.run()
    rig.both("ALTER TABLE t ADD PRIMARY KEY (id)")
    follow(rig, str(told.value))
    rig.write("UPDATE t SET v = 'c'")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_partitioned_table_that_names_no_identity_has_its_key_again_as_the_hint_says(rig: Rig) -> None:
    rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t DEFAULT",
    )
    rig.prepare()
    rig.write("ALTER TABLE t REPLICA IDENTITY NOTHING", "INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'")
    with pytest.raises(FatalError, match="Under REPLICA IDENTITY NOTHING no key serves: set it to DEFAULT") as told:
        rig.run()
    rig.write("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    follow(rig, str(told.value))
    rig.write("UPDATE t SET v = 'c'")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


def follow(rig: Rig, told: str) -> None:
    """Follow the hint, word by word."""
    found = re.search(r"Run (ALTER TABLE .*?) at the source", told)
    if found is not None:
        execute(rig.source_dsn, *found[1].split("; "))
    assert "parallel-apply recopy --pipeline p --table public.t" in told, told
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
