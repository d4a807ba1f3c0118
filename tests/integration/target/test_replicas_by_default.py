"""Targets on which more acts, or less, in a replica's transactions than anybody would think: by defaults of the role,
and by foreign keys that were enabled for replicas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.target.postgres.merge.cascades import find_acting_keys
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.acting_references import acting_references
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import Rig, execute
from tests.support.variants import gated

SHOUT = (
    "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := upper(NEW.v); RETURN NEW; END'",
    "CREATE TRIGGER shout BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION shout()",
)


@pytest.fixture
def plain(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as found:
        yield found


def told_and_followed(rig: Rig, *says: str) -> None:
    """A run is red, and green and equal once its hint is followed, as a superuser."""
    with pytest.raises(FatalError) as caught:
        rig.run()
    told = str(caught.value)
    for word in says:
        assert word in told
    hint = re.search(r"Run (ALTER .+?)(?: at the target|; then|; or)", told)
    assert hint is not None, told
    execute(owner(rig), *hint[1].split("; "))
    rig.run()
    assert rig.comparison().equal


def owner(rig: Rig) -> str:
    return psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")


def be_replica_by_default(rig: Rig) -> None:
    role = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["user"]
    execute(owner(rig), f"ALTER ROLE {role} SET session_replication_role = replica")


@gated
def test_a_trigger_for_replicas_is_named_to_a_role_that_is_one_by_default_alone(plain: PlainRig) -> None:
    plain.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    be_replica_by_default(plain)
    plain.prepare()
    execute(owner(plain), *SHOUT, "ALTER TABLE t ENABLE REPLICA TRIGGER shout")
    plain.write("INSERT INTO t VALUES (1, 'quiet')")
    told_and_followed(plain, "trigger shout", "changes what is applied")


@gated
def test_nothing_of_a_dropped_pipeline_is_left_where_foreign_keys_delete_nothing(
    plain: PlainRig, tmp_path: Path
) -> None:
    """Else the next one of its name would begin at its positions."""
    be_replica_by_default(plain)
    plain.both("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE other (id int PRIMARY KEY)")
    tables = replace(plain.config.tables, include=("public.other",))
    other = plain.having(pipeline="q", log_url=str(tmp_path / "another log"), tables=tables)
    plain = replace(plain, config=replace(plain.config, tables=replace(tables, include=("public.t",))))
    other.prepare()
    plain.prepare()
    plain.write(*(f"INSERT INTO t VALUES ({number}, 'a')" for number in range(5)))
    plain.run()
    drop_pipeline("p", plain.source, plain.target, log_url=plain.config.log_url, with_log=True, force=True)
    for dsn in (plain.source_dsn, owner(plain)):
        execute(dsn, "TRUNCATE t")
    plain.prepare()
    plain.write("INSERT INTO t VALUES (7, 'b')")
    plain.run()
    assert plain.comparison().equal


@gated
def test_foreign_keys_that_were_enabled_for_replicas_are_named(rig: Rig) -> None:
    """A delete that the source's row alone went by would take the target's children along."""
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE child (id int PRIMARY KEY, t int)")
    execute(rig.target_dsn, "ALTER TABLE child ADD CONSTRAINT up FOREIGN KEY (t) REFERENCES t ON DELETE CASCADE")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO child VALUES (1, 1), (2, 2)")
    rig.run()
    rig.write("DELETE FROM t WHERE id = 1")
    rig.capture("r")
    opened = rig.open("r")
    for (name,) in rig.rows("SELECT tgname FROM pg_trigger WHERE tgrelid = 't'::regclass"):
        execute(rig.target_dsn, f'ALTER TABLE t ENABLE ALWAYS TRIGGER "{name}"')
    with pytest.raises(FatalError, match="act on applied rows"):
        rig.close(opened, rig.apply(opened))
    told_and_followed(rig, "table public.t", ": up")


def test_a_ddl_s_text_does_not_let_triggers_act_behind_it(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    rig.prepare()
    execute(rig.target_dsn, *SHOUT)
    rig.transaction(rig.ddl("SET session_replication_role = origin"), "INSERT INTO t VALUES (1, 'quiet')")
    rig.run()
    assert rig.comparison().equal


def test_a_key_that_is_not_enforced_acts_on_nothing(target_dsn: str) -> None:
    with psycopg.connect(target_dsn) as connection:
        if connection.info.server_version < 180000:
            pytest.skip("each key is enforced")
        connection.execute("CREATE TABLE p (id integer PRIMARY KEY)")
        connection.execute("CREATE TABLE c (id integer REFERENCES p ON DELETE CASCADE NOT ENFORCED)")
        assert acting_references(connection) == []
        assert find_acting_keys(connection) == ()
        assert _guards(connection) == [[], []]
        connection.execute("ALTER TABLE c ALTER CONSTRAINT c_id_fkey ENFORCED")
        assert len(acting_references(connection)) == len(find_acting_keys(connection)) == 1
        assert _guards(connection) == [["c_id_fkey"], ["c_id_fkey"]]


def _guards(connection: psycopg.Connection[Any]) -> list[list[str]]:
    """The foreign keys of the two tables that check warns of."""
    oids = [oid for (oid,) in connection.execute("SELECT oid FROM pg_class WHERE relname IN ('p', 'c')").fetchall()]
    guards = statement("check", "guards")
    return [row[-1] for row in connection.execute(guards, {"oids": oids}).fetchall()]
