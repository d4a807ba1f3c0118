"""A DDL message counts if somebody sent it who may; anybody else's changes nothing and stops nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.sent_ddl import written
from airflow_parallel_apply.pipeline.source.open import install_ddl_capture_at
from tests.integration.source.conftest import Scene
from tests.support.ddl_messages import ddl, install
from tests.support.variants import gated

EVIL = "CREATE TABLE pwned AS SELECT current_user"


@pytest.fixture
def stranger(scene: Scene) -> Iterator[str]:
    """A login without any right but to connect."""
    name = f"stranger_{scene.config.pipeline}"
    scene.execute(f"CREATE ROLE {name} LOGIN")
    yield make_conninfo(scene.dsn, user=name)
    scene.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def send(dsn: str, content: bytes, *, transactional: bool = True, prefix: str = "parallel_apply.ddl") -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_logical_emit_message(%s, %s, %s::bytea)", [transactional, prefix, content])


def begin(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()


@gated
@pytest.mark.parametrize("is_installed", [True, False])
def test_a_strangers_message_is_passed_over_with_a_warning(
    scene: Scene, stranger: str, is_installed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if is_installed:
        install(scene.dsn)
    begin(scene)
    send(stranger, EVIL.encode())
    send(stranger, b"\xff\xfe not UTF-8")
    send(stranger, bytes(32) + EVIL.encode())
    send(stranger, EVIL.encode(), transactional=False)
    scene.execute("INSERT INTO t VALUES (1)")
    with caplog.at_level(logging.WARNING):
        scene.capture()
    assert scene.shown("operation", "key") == [("I", "1")]
    told = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert len(told) == 4
    assert all("parallel-apply install-ddl-capture" in line for line in told)
    assert "outside any transaction" in told[3]


def test_a_storm_of_strange_messages_is_told_a_few_times(
    scene: Scene, stranger: str, caplog: pytest.LogCaptureFixture
) -> None:
    begin(scene)
    with psycopg.connect(stranger) as connection:
        connection.execute(
            "SELECT pg_logical_emit_message(true, 'parallel_apply.ddl', 'x') FROM generate_series(1, 500)"
        )
    with caplog.at_level(logging.WARNING):
        scene.capture()
    assert len([record for record in caplog.records if "passed over" in record.getMessage()]) == 5


def test_what_was_signed_counts_in_its_own_transaction_only(scene: Scene, stranger: str) -> None:
    install(scene.dsn)
    begin(scene)
    scene.execute(ddl("ALTER TABLE t ADD v int"))
    content = scene.value(
        "SELECT substring(data FROM position('\\x00'::bytea IN substring(data FROM 11)) + 15) "
        "FROM pg_logical_slot_peek_binary_changes("
        f"'{scene.slot}', NULL, NULL, 'proto_version', '1', 'publication_names', '{scene.slot}', 'messages', 'true') "
        "WHERE get_byte(data, 0) = ascii('M')"
    )
    sent = content[32:].decode()
    assert sent.startswith('SET LOCAL search_path = "public"; ')
    assert written(sent) == "ALTER TABLE t ADD v int"
    send(stranger, content)
    scene.capture()
    assert scene.shown("operation", "values") == [("M", ["parallel_apply.ddl", sent])]


def test_a_function_that_a_stranger_made_is_not_even_called(scene: Scene, stranger: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(stranger)["user"]
    begin(scene)
    scene.execute(f"CREATE SCHEMA parallel_apply AUTHORIZATION {name}")
    with psycopg.connect(stranger, autocommit=True) as connection:
        connection.execute("CREATE TABLE parallel_apply.ddl_key (a int)")
        for function in ("ddl_is_signed(text, text, bytea)", "ddl_signature(text, text, bytea)", "send_ddl(text)"):
            connection.execute(
                f"CREATE FUNCTION parallel_apply.{function} RETURNS boolean LANGUAGE plpgsql AS "
                "$$ BEGIN CREATE TABLE public.called (); RETURN true; END $$"
            )
    send(stranger, bytes(32) + EVIL.encode())
    scene.capture()
    assert scene.rows() == []
    assert scene.value("SELECT to_regclass('public.called')") is None
    with pytest.raises(ConfigurationError, match=f"belongs to {name}"):
        install(scene.dsn)


def test_who_owns_the_schema_could_replace_the_functions_in_it(scene: Scene, stranger: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(stranger)["user"]
    install(scene.dsn)
    begin(scene)
    scene.execute(f"ALTER SCHEMA parallel_apply OWNER TO {name}", ddl("CREATE INDEX ON t (id)"))
    scene.capture()
    assert scene.rows() == []
    with pytest.raises(ConfigurationError, match=rf"has schema parallel_apply.* {name}.*OWNER TO CURRENT_USER"):
        install(scene.dsn)
    scene.execute("ALTER SCHEMA parallel_apply OWNER TO CURRENT_USER")
    install(scene.dsn)
    scene.execute(ddl("CREATE INDEX ON t (id)"))
    scene.capture()
    assert scene.shown("operation") == [("M",)]


def test_a_role_sends_once_it_is_granted_that(scene: Scene, stranger: str) -> None:
    install(scene.dsn)
    begin(scene)
    with psycopg.connect(stranger, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(sql.SQL(ddl("SELECT 1")))  # type: ignore[arg-type]
        for query in (
            "SELECT inner_key FROM parallel_apply.ddl_key",
            "SELECT parallel_apply.ddl_signature('', '', '')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql.SQL(query))  # type: ignore[arg-type]
    name = psycopg.conninfo.conninfo_to_dict(stranger)["user"]
    told = install_ddl_capture_at(Endpoint(conn_id="source", url=scene.dsn), grant_to=[str(name)])
    assert told[-1] == f"Role {name} may send."
    with psycopg.connect(stranger, autocommit=True) as connection:
        connection.execute(sql.SQL(ddl("ALTER TABLE t ADD v text DEFAULT 'é'")))  # type: ignore[arg-type]
    scene.capture()
    ((operation, (prefix, content)),) = scene.shown("operation", "values")
    assert (operation, prefix) == ("M", "parallel_apply.ddl")
    assert content.endswith("ALTER TABLE t ADD v text DEFAULT 'é'")


def test_what_is_sent_in_a_savepoint_stays_before_what_follows_it(scene: Scene) -> None:
    install(scene.dsn)
    begin(scene)
    scene.transaction(
        "INSERT INTO t VALUES (1)",
        "SAVEPOINT a",
        ddl("ALTER TABLE t ADD v int"),
        "RELEASE a",
        "INSERT INTO t VALUES (2)",
        "SAVEPOINT b",
        ddl("ALTER TABLE t DROP v"),
        "RELEASE b",
        "DELETE FROM t WHERE id = 1",
    )
    scene.capture()
    assert [operation for (operation,) in scene.shown("operation")] == ["I", "M", "I", "M", "D"]
