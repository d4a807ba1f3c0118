"""Rights that are taken from the target's role in the middle of a run: the hint gives them back, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.target.postgres.naming import holder_session
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import execute
from tests.support.variants import gated

TAKEN = {
    "a table": 'REVOKE UPDATE, INSERT ON "T t" FROM PUBLIC, {role}',
    "a schema": "REVOKE USAGE ON SCHEMA public FROM PUBLIC, {role}",
}


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as found:
        yield found


@gated
@pytest.mark.parametrize("what", TAKEN)
def test_a_right_that_is_taken_is_granted_again_by_the_hint(rig: PlainRig, what: str) -> None:
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    rig.both('CREATE TABLE "T t" (id int PRIMARY KEY, v text)')
    rig.prepare()
    rig.write("""INSERT INTO "T t" VALUES (1, 'a')""")
    rig.run()
    rig.write("""UPDATE "T t" SET v = 'b'""", """INSERT INTO "T t" VALUES (2, 'c')""")
    rig.capture("r")
    opened = rig.open("r")
    execute(owner, TAKEN[what].format(role=psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["user"]))
    with pytest.raises(FatalError, match="permission denied for") as caught:
        rig.close(opened, rig.apply(opened))
    found = re.search(r"Run (GRANT .*?) at the target", str(caught.value))
    assert found is not None, caught.value
    execute(owner, found[1])
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("left", ["a session", pytest.param("staging", marks=pytest.mark.long)])
def test_another_role_is_told_how_to_remove_what_runs_under_the_former_one_have_left(rig: PlainRig, left: str) -> None:
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    former = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["user"]
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')")
    rig.run()
    rig.write("UPDATE t SET v = 'b'")
    role = f"{former}_2"
    tables = [f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}" for schema in ("public", "parallel_apply")]
    execute(owner, f"CREATE ROLE {role} LOGIN", *tables, f"GRANT ALL ON SCHEMA parallel_apply TO {role}")
    name = holder_session("p", 0, "former")
    with closing(psycopg.connect(rig.target_dsn, autocommit=True, application_name=name)) as session:
        if left == "staging":
            session.execute(f"CREATE TABLE parallel_apply.s_{name.split(':')[1]}_0_{name.split(':')[3]}_x_1 (id int)")
            session.close()
        other = replace(rig, target_dsn=psycopg.conninfo.make_conninfo(rig.target_dsn, user=role))
        with pytest.raises(FatalError, match=f"Run GRANT .{former}. TO .{role}. at the target") as caught:
            other.run()
        found = re.search(r"Run (GRANT .*?) at the target", str(caught.value))
        assert found is not None
        execute(owner, found[1])
        other.run()
    assert rig.comparison().equal
    execute(owner, f"REASSIGN OWNED BY {role} TO {former}", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_hint_is_completed_by_what_may_be_looked_up_where_something_else_may_not(rig: PlainRig) -> None:
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    execute(owner, "CREATE UNIQUE INDEX i ON t (v)", "REVOKE SELECT ON pg_catalog.pg_inherits FROM PUBLIC")
    try:
        with (
            closing(Session(rig.target_dsn, pipeline="p")) as session,
            pytest.raises(FatalError, match=r'run DROP INDEX "public"\."i" at the target'),
            session.errors("commit"),
        ):
            session.connection().execute("INSERT INTO t VALUES (1, 'a'), (2, 'a')")
    finally:
        execute(owner, "GRANT SELECT ON pg_catalog.pg_inherits TO PUBLIC")


def test_a_right_is_granted_to_the_role_that_a_login_becomes_by_default(rig: PlainRig) -> None:
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    login = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["user"]
    acting = f"{login}_acts"
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    execute(owner, f"CREATE ROLE {acting}", f"GRANT {acting} TO {login}", f"ALTER ROLE {login} SET role = {acting}")
    try:
        execute(owner, f"GRANT ALL ON t TO {acting}", "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        with (
            closing(Session(rig.target_dsn, pipeline="p")) as session,
            pytest.raises(FatalError, match=f'Run ALTER ROLE "{acting}" BYPASSRLS at the target'),
            session.errors("commit"),
        ):
            session.connection().execute("INSERT INTO t VALUES (1, 'a')")
    finally:
        execute(owner, f"ALTER ROLE {login} RESET ALL", f"DROP OWNED BY {acting}", f"DROP ROLE {acting}")
