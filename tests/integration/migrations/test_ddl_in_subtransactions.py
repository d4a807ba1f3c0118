"""DDL that is sent from behind a savepoint, or from a block with EXCEPTION, as migration tools run it, counts as sent:
the catalog has the subtransaction's id where the message has the transaction's.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.clusters import CopiedServer
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants

_SENT = {
    "a label": "ALTER TYPE public.mood RENAME VALUE 'sad' TO 'blue'",
    "an attribute": "ALTER TYPE public.pair ADD ATTRIBUTE c integer",
    "a parent": "ALTER TABLE public.child INHERIT public.t",
    "values": "ALTER TABLE public.t ALTER x TYPE bigint USING x * 2",
    "a new type": "ALTER TYPE public.young RENAME VALUE 'sad' TO 'blue'",
}
_EARLIER = """
CREATE OR REPLACE FUNCTION parallel_apply.send_ddl(
    statement text, path name[] DEFAULT pg_catalog.current_schemas(false)
)
RETURNS void LANGUAGE sql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT FROM parallel_apply.send_signed('parallel_apply.ddl', statement) /* bytea_output */ $$
"""


def behind_a_savepoint(statement: str, send: str) -> tuple[str, ...]:
    return ("SAVEPOINT a", "SAVEPOINT b", statement, "RELEASE b", "SAVEPOINT c", send, "RELEASE a")


def in_a_block(statement: str, send: str) -> tuple[str, ...]:
    send = send.replace("SELECT", "PERFORM", 1)
    return (f"DO $do$ BEGIN BEGIN {statement}; EXCEPTION WHEN others THEN RAISE; END; {send}; END $do$",)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE pair AS (a integer, b integer)",
        "CREATE TABLE t (id integer PRIMARY KEY, m mood, p pair, x integer)",
        "CREATE TABLE child (id integer PRIMARY KEY, m mood, p pair, x integer)",
    )
    # Without its event trigger, which tells of types by itself.
    install(rig.source_dsn)
    rig.write(*(f"DROP EVENT TRIGGER parallel_apply_capture_{name}" for name in ("ddl", "rewrite")))
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'sad', '(1,2)', 3), (2, 'ok', NULL, 4)")
    rig.run()
    return rig


@pytest.mark.parametrize("kind", [behind_a_savepoint, pytest.param(in_a_block, marks=pytest.mark.long)])
@pytest.mark.parametrize("what", variants(_SENT, seldom=("a parent", "an attribute")))
def test_it_is_followed(rig: Rig, what: str, kind: type) -> None:
    if what == "a new type":
        new = "CREATE TYPE young AS ENUM ('sad')", "ALTER TABLE t ADD y young"
        rig.both(*new)
        rig.write("INSERT INTO t VALUES (3, 'ok', NULL, 5, 'sad')")
    rig.transaction(*kind(_SENT[what], ddl(_SENT[what])), "UPDATE t SET x = 7 WHERE id = 2")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_what_a_younger_transaction_did_is_not_taken_for_that_of_a_subtransaction(rig: Rig) -> None:
    with psycopg.connect(rig.source_dsn) as sender:
        sender.execute("UPDATE t SET x = 7 WHERE id = 2")
        sender.execute("SAVEPOINT a")
        rig.write(_SENT["a label"])
        retyped = "ALTER TABLE public.child ALTER x TYPE bigint"
        sender.execute(retyped)
        sender.execute(ddl(retyped))
    with pytest.raises(FatalError, match=r"labels of an enum in public\.child .*: sad"):
        rig.run()


def test_ddl_is_sent_by_a_server_whose_transaction_ids_began_anew(tmp_path: Path) -> None:
    with CopiedServer(tmp_path / "data", settings={"shared_buffers": "16MB", "autovacuum": "off"}) as server:
        execute(server.dsn(), "CREATE TABLE t (id integer)")
        install(server.dsn())
        execute(server.dsn(), "UPDATE pg_database SET datallowconn = true")
        for database in ("postgres", "template1", "template0"):
            execute(server.dsn(database), "VACUUM FREEZE")
        with psycopg.connect(server.dsn()) as connection:
            found = connection.execute("SELECT xmin::text::bigint FROM pg_attribute WHERE attrelid = 't'::regclass")
            ((xid,), *_) = found.fetchall()
        server.stop()
        begin_anew(server, first_xid=xid - 2)
        server.start()
        with psycopg.connect(server.dsn()) as connection:
            connection.execute("SAVEPOINT a")
            connection.execute("CREATE TYPE mood AS ENUM ('sad')")
            connection.execute("RELEASE a")
            connection.execute("CREATE TABLE u (m mood)")
            connection.execute(ddl("CREATE TABLE u (m mood)"))
            (told,) = connection.execute("SELECT parallel_apply.subtransactions()").fetchone() or (None,)
            made = connection.execute("SELECT xmin::text FROM pg_enum WHERE enumlabel = 'sad'").fetchone()
        assert (told,) == made


def begin_anew(server: CopiedServer, *, first_xid: int) -> None:
    """Have a stopped server, whose rows are frozen, go on with this id of the next epoch."""
    owner, is_root = server.directory.stat(), os.getuid() == 0
    done = subprocess.run(
        [
            str(server.bin_path / "pg_resetwal"), "--force", "--epoch=1", f"--next-transaction-id={first_xid}",
            str(server.directory),
        ],
        cwd="/", check=False, capture_output=True, text=True,
        user=owner.st_uid if is_root else None,
        group=owner.st_gid if is_root else None,
        extra_groups=[] if is_root else None,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@gated
def test_an_earlier_version_s_function_tells_less_and_is_told_of(rig: Rig) -> None:
    rig.write(_EARLIER)
    label = _SENT["a label"]
    rig.transaction(*behind_a_savepoint(label, ddl(label)))
    found = check_pipeline(rig.config, rig.source, rig.target).findings
    (told,) = [one for one in found if one.where == "parallel_apply.send_ddl"]
    assert "savepoint" in told.what
    assert "install-ddl-capture` again" in told.note
    with pytest.raises(FatalError, match=r"labels of an enum in public\.t"):
        rig.run()
    install(rig.source_dsn)
    assert not [one for one in check_pipeline(rig.config, rig.source, rig.target).findings if "send_ddl" in one.where]
    execute(rig.target_dsn, label)
