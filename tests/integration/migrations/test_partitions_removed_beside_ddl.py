"""Partitions that are dropped or detached while other things are done to their table, too."""

from __future__ import annotations

from contextlib import closing

import pytest

from airflow_parallel_apply.pipeline.capture.adoption import release_source
from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError, SourceError
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.hunt.commands import invoked
from tests.integration.migrations.removals import PLAIN, begun, require_equal, require_recopy
from tests.support.ddl_messages import ddl
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_ROW = "INSERT INTO t (at, id) VALUES ('2024-02-11 07:00', 1)"


@gated
def test_a_table_that_somebody_vouches_for_loses_the_rows_all_the_same(rig: Rig) -> None:
    rig = begun(rig)
    rig.write("ALTER TABLE t ALTER v TYPE varchar(9) USING left(v, 9)", "DROP TABLE t_1")
    with pytest.raises(FatalError, match="vouch"):
        rig.run()
    result = invoked(rig, "parallel-apply vouch --table public.t")
    assert result.exit_code == 0, result.output
    execute(rig.target_dsn, "ALTER TABLE t ALTER v TYPE varchar(9)")
    rig.run()
    require_equal(rig)


@gated
def test_a_table_that_was_a_partition_itself_is_copied_anew(rig: Rig) -> None:
    """Its partitions' bounds, as they were noted, are narrower than they became."""
    rig = begun(rig, *PLAIN)
    rig.write(
        "DELETE FROM t WHERE at < '2024-01-10'",
        "DROP TABLE t_rest",
        "CREATE TABLE above (at timestamptz, id integer, v text, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
    )
    require_recopy(rig)
    rig.write("ALTER TABLE above ATTACH PARTITION t FOR VALUES FROM ('2024-01-10') TO ('2024-04-01')")
    rig.run()
    rig.write("ALTER TABLE above DETACH PARTITION t", "INSERT INTO t VALUES ('2024-01-05', 1, 'x')", "DROP TABLE t_1")
    require_recopy(rig)


@gated
@pytest.mark.parametrize("is_one_transaction", [True, False])
@pytest.mark.parametrize(
    "statement", ["ALTER TABLE t RENAME v TO w", "ALTER TABLE t DROP COLUMN v", "ALTER TABLE t ALTER v TYPE varchar(9)"]
)
def test_a_sent_alteration_of_another_column_without_a_row_since_is_no_matter(
    rig: Rig, statement: str, is_one_transaction: bool
) -> None:
    rig = begun(rig).having(ddl=DdlPolicy.APPLY)
    if is_one_transaction:
        rig.transaction(statement, ddl(statement), "DROP TABLE t_1")
    else:
        rig.transaction(statement, ddl(statement))
        rig.run()
        rig.write("DROP TABLE t_1")
    rig.run()
    require_equal(rig)
    rig.write(_ROW)
    rig.run()
    require_equal(rig)


@gated
def test_a_sent_new_name_of_a_column_of_the_bounds_asks_for_a_copy(rig: Rig) -> None:
    rig = begun(rig).having(ddl=DdlPolicy.APPLY)
    rename = "ALTER TABLE t RENAME at TO moment"
    rig.transaction(rename, ddl(rename), "DROP TABLE t_1")
    with pytest.raises(FatalError, match=r"rows of public\.t went with a partition(?s:.*)recopy"):
        rig.run()


@gated
@pytest.mark.parametrize("statement", ["DROP TABLE t_0", "ALTER TABLE t DETACH PARTITION t_0"])
@pytest.mark.parametrize(
    ("by", "parts"),
    [
        ("HASH (id)", ("WITH (MODULUS 2, REMAINDER 0)", "WITH (MODULUS 2, REMAINDER 1)")),
        ("LIST (v)", ("IN ('a')", "IN ('b')")),
        ("RANGE (v)", ("FROM ('a') TO ('b')", None)),
    ],
)
def test_partitions_below_need_no_bounds_that_are_known(
    rig: Rig, by: str, parts: tuple[str | None, ...], statement: str
) -> None:
    below = [f"FOR VALUES {bounds}" if bounds else "DEFAULT" for bounds in parts]
    rig = begun(
        rig,
        *(one.replace("PRIMARY KEY (at, id)", "PRIMARY KEY (at, id, v)") for one in PLAIN),
        source=(
            "CREATE TABLE t (at timestamptz, id integer, v text, PRIMARY KEY (at, id, v)) PARTITION BY RANGE (at)",
            f"CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-02-01') PARTITION BY {by}",
            *(f"CREATE TABLE t_0{number} PARTITION OF t_0 {bounds}" for number, bounds in enumerate(below)),
            "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2024-02-01') TO ('2024-06-01')",
        ),
    )
    rig.write("INSERT INTO t VALUES ('2024-01-03 07:00', 1, 'a'), ('2024-01-03 07:00', 2, 'b')", statement)
    rig.run()
    require_equal(rig)


@gated
def test_a_partition_by_hash_that_goes_alone_stops_the_run(rig: Rig) -> None:
    rig = begun(
        rig,
        *PLAIN,
        source=(
            f"{PLAIN[0]} PARTITION BY RANGE (at)",
            "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-06-01') PARTITION BY HASH (id)",
            "CREATE TABLE t_00 PARTITION OF t_0 FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
            "CREATE TABLE t_01 PARTITION OF t_0 FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        ),
    )
    rig.write("DROP TABLE t_00", "ALTER TABLE t DETACH PARTITION t_0")
    require_recopy(rig)


@gated
def test_a_partition_whose_bounds_are_of_a_domain_stops_the_run(rig: Rig) -> None:
    """The type below it may be another one at the target."""
    domain, table = "CREATE DOMAIN moment AS timestamptz", PLAIN[0].replace("timestamptz", "moment")
    rig = begun(
        rig,
        domain,
        table,
        source=(
            domain,
            f"{table} PARTITION BY RANGE (at)",
            "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
            "CREATE TABLE t_rest PARTITION OF t DEFAULT",
        ),
    )
    rig.write("DROP TABLE t_1")
    require_recopy(rig)


@gated
def test_a_removal_alone_is_a_change_that_the_next_run_is_for(rig: Rig) -> None:
    rig = begun(rig)
    rig.write("UPDATE t SET v = 'b' WHERE at < '2024-01-10'")
    ((until,),) = rig.rows("SELECT pg_current_wal_lsn()::text", side="source")
    rig.write("DROP TABLE t_1")
    rig.run(until=until)
    with closing(open_capture(rig.source, rig.config)) as capture:
        assert capture.has_changes(open_reader(rig.config.log_url).state().place)


@gated
def test_no_server_is_upgraded_before_the_log_has_a_removal(rig: Rig) -> None:
    rig = begun(rig)
    rig.write("DROP TABLE t_1")
    with pytest.raises(SourceError, match="the log lacks changes"):
        release_source(rig.source, rig.config)
    rig.run()
    require_equal(rig)
    release_source(rig.source, rig.config)
