"""A partitioned table whose partitions are known by their bounds, and what becomes of a run behind one that goes."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.copy.recopying import again
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute

PARTITIONED = (
    "CREATE TABLE t (at timestamptz, id integer, v text, PRIMARY KEY (at, id)) PARTITION BY RANGE (at)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')",
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')",
    "CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM ('2024-03-01') TO ('2024-04-01') PARTITION BY LIST (id)",
    "CREATE TABLE t_31 PARTITION OF t_3 FOR VALUES IN (1, 2)",
    "CREATE TABLE t_32 PARTITION OF t_3 FOR VALUES IN (3, 4)",
    "CREATE TABLE t_rest PARTITION OF t DEFAULT",
)
PLAIN = ("CREATE TABLE t (at timestamptz, id integer, v text, PRIMARY KEY (at, id))",)


def begun(rig: Rig, *target: str, source: tuple[str, ...] = PARTITIONED) -> Rig:
    install(rig.source_dsn)
    rig = rig.having(tables=TablePatterns(include=("public.t",)))
    execute(rig.source_dsn, *source)
    execute(rig.target_dsn, *(target or source))
    rig.prepare()
    rig.write(
        "INSERT INTO t SELECT day, g, 'a' FROM generate_series(timestamptz '2024-01-01', '2024-04-09', '1 day') day, "
        "generate_series(1, 4) g"
    )
    rig.run()
    return rig


def require_recopy(rig: Rig) -> None:
    """Find that the run stops with that hint, and goes on behind it."""
    with pytest.raises(FatalError, match=r"recopy --pipeline p --table public\.t`"):
        rig.run()
    again(rig, "t")
    rig.run()
    require_equal(rig)


def require_equal(rig: Rig) -> None:
    query = "SELECT to_jsonb(r)::text FROM t r ORDER BY 1"
    assert rig.rows(query) == rig.rows(query, side="source")
    assert rig.comparison().equal
