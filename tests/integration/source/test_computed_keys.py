"""A key with a computed column, which is not sent: by the rest of it no rows are told apart."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.support.rig import Rig
from tests.support.variants import gated


def test_rows_that_differ_in_the_computed_column_of_their_key_alone_are_all_there(rig: Rig) -> None:
    rig.both("CREATE TABLE t (a integer, b integer, g integer GENERATED ALWAYS AS (b * 2) STORED, PRIMARY KEY (a, g))")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 1), (1, 2), (2, 1)")
    rig.run()
    assert rig.comparison().equal
    found = check_pipeline(rig.config, rig.source, rig.target).findings
    assert ('ALTER TABLE "public"."t" REPLICA IDENTITY FULL',) in [finding.fix for finding in found]
    # The message has the identity of before.
    rig.write("INSERT INTO t VALUES (3, 1), (3, 2)", "ALTER TABLE t REPLICA IDENTITY NOTHING")
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize(
    "later",
    [
        "CREATE UNIQUE INDEX ON t (a) WHERE b > 5",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b)",
        "ALTER TABLE t DROP g, ADD PRIMARY KEY (b)",
    ],
)
def test_no_index_of_a_later_moment_makes_a_part_of_the_key_a_whole_one(rig: Rig, later: str) -> None:
    rig.both(
        "CREATE TABLE t (a integer, b integer, g integer GENERATED ALWAYS AS (b * 2) STORED, PRIMARY KEY (a, g))",
        "CREATE TABLE u (a integer PRIMARY KEY, b integer NOT NULL, g integer GENERATED ALWAYS AS (b) STORED NOT NULL)",
        "CREATE TABLE v (a integer, b integer NOT NULL, g integer GENERATED ALWAYS AS (a) STORED NOT NULL)",
        "CREATE UNIQUE INDEX v_old ON v (b, g); ALTER TABLE v REPLICA IDENTITY USING INDEX v_old",
    )
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 1), (1, 2), (2, 3)", later, "INSERT INTO u VALUES (1, 1)")
    rig.write("ALTER TABLE u DROP CONSTRAINT u_pkey, ADD PRIMARY KEY (b)")
    rig.write("INSERT INTO v VALUES (1, 1), (2, 1)", "TRUNCATE v")
    rig.write("CREATE UNIQUE INDEX v_new ON v (b)", "ALTER TABLE v REPLICA IDENTITY USING INDEX v_new")
    rig.capture("run")
    found = open_reader(rig.config.log_url).state().relations
    keys = {one.table: [column.name for column in one.columns if column.key] for one in found}
    assert keys == {"t": [], "u": ["a"], "v": []}
