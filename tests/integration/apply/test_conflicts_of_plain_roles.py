"""Channels in each other's way where the role may not act as a replica: triggers and foreign keys act on what comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.partition.key import buckets
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import execute
from tests.support.variants import gated

CHANNELS = 4


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as found:
        yield found


def keys_of(channel: int, table: str = "t") -> list[int]:
    """Keys of a table that lie in a channel."""
    found = buckets(f"public.{table}", pa.array([str(key) for key in range(1, 61)]))
    return [key for key, bucket in enumerate(found, 1) if int(bucket) * CHANNELS // BUCKET_COUNT == channel]


def audit(rig: PlainRig, table: str) -> None:
    """Let a trigger of the target write down what happens to a table."""
    execute(
        psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres"),
        "CREATE SCHEMA audit",
        "CREATE TABLE audit.seen (what text)",
        "GRANT USAGE ON SCHEMA audit TO PUBLIC",
        "GRANT INSERT ON audit.seen TO PUBLIC",
        "CREATE FUNCTION audit.see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO audit.seen VALUES (TG_OP); RETURN NULL; END$$",
        f"CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION audit.see()",
    )


def require_equal(rig: PlainRig, query: str) -> None:
    assert rig.rows(query) == rig.rows(query, side="source")


@pytest.mark.parametrize("is_swapped", [True, pytest.param(False, marks=pytest.mark.long)])
def test_values_that_are_handed_on_behind_the_channels_that_have_committed_all(rig: PlainRig, is_swapped: bool) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE, v text)")
    audit(rig, "t")
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i FROM generate_series(1, 60) i")
    rig.run()
    one, two = keys_of(3)[:2]
    rig.transaction(
        f"UPDATE t SET u = -1 WHERE id = {two}",
        f"UPDATE t SET u = {two} WHERE id = {one}",
        *([f"UPDATE t SET u = {one} WHERE id = {two}"] if is_swapped else []),
        f"UPDATE t SET v = 'ahead' WHERE id = {keys_of(0)[0]}",
    )
    rig.run(lanes=1)
    require_equal(rig, "SELECT id, u, v FROM t ORDER BY id")


@gated
def test_a_conflict_that_no_way_resolves_names_the_right_that_might(rig: PlainRig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, u integer UNIQUE)")
    audit(rig, "t")
    rig.prepare()
    execute(rig.target_dsn, "INSERT INTO t VALUES (0, 1)")
    rig.write("INSERT INTO t VALUES (1, 1)")
    with pytest.raises(TargetError, match=r"Or, if rows of the source exchange .* run GRANT SET ON PARAMETER"):
        rig.run(lanes=1)


@gated
@pytest.mark.parametrize(
    "audited", [None, *(pytest.param(table, marks=pytest.mark.long) for table in ("parent", "child"))]
)
def test_a_foreign_key_begins_to_act_between_channels(rig: PlainRig, audited: str | None) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    make_family(rig)
    if audited:
        audit(rig, audited)
    rig.prepare()
    rig.write(
        "INSERT INTO parent SELECT generate_series(1, 40)",
        "INSERT INTO child SELECT n, n FROM generate_series(1, 40) n",
    )
    rig.run()
    begin_to_act(rig, "CASCADE")
    rig.write("DELETE FROM parent WHERE id < 10")
    rig.run()
    require_equal(rig, "SELECT id, parent FROM child ORDER BY id")


@gated
def test_a_foreign_key_begins_to_update_what_a_channel_ahead_has(rig: PlainRig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY, epoch_max_changes=1, unit_max_bytes=1)
    make_family(rig)
    rig.prepare()
    parent, child = keys_of(3, "parent")[0], keys_of(0, "child")[0]
    rig.write(f"INSERT INTO parent VALUES ({parent})", f"INSERT INTO child VALUES ({child}, {parent})")
    rig.run()
    begin_to_act(rig, "SET NULL")
    rig.write("DELETE FROM parent", f"INSERT INTO parent VALUES ({parent})", f"UPDATE child SET parent = {parent}")
    rig.run(lanes=1)
    require_equal(rig, "SELECT id, parent FROM child ORDER BY id")


def make_family(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY)", "CREATE TABLE child (id integer PRIMARY KEY, parent integer)"
    )
    role = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["user"]
    execute(
        psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres"),
        *(f"ALTER TABLE {table} OWNER TO {role}" for table in ("parent", "child")),
    )


def begin_to_act(rig: PlainRig, action: str) -> None:
    key = f"ALTER TABLE public.child ADD FOREIGN KEY (parent) REFERENCES public.parent ON DELETE {action}"
    rig.transaction(rig.ddl(key), key)
