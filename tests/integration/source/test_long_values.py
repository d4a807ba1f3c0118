"""Values that the source can never send stop a run at once, with what to do, instead of being tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from tests.integration.source.conftest import Scene
from tests.support.variants import gated


@pytest.fixture
def session(scene: Scene) -> Iterator[Session]:
    """With a function that fails as decoding does: values of a gigabyte take minutes to make."""
    scene.execute(
        "CREATE FUNCTION fails(code text, words text) RETURNS bytea LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION USING errcode = code, message = words; END $$"
    )
    with closing(Session(Endpoint(conn_id="source", url=scene.dsn), application_name="test")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("XX000", "invalid memory alloc request size 1200000003"),
        ("54000", "out of memory"),
        ("54000", "string buffer exceeds maximum allowed length (1073741823 bytes)"),
    ],
)
def test_a_row_that_is_too_long_to_be_sent_is_fatal(session: Session, code: str, words: str) -> None:
    with pytest.raises(SourceError, match=r"cannot send a row.*PL/pgSQL.*Hint: .*longer than 1 GB.*start anew") as told:
        list(session.stream(f"SELECT public.fails('{code}', '{words}')", batch_bytes=1))
    assert words in str(told.value)
    # As the first copy meets it.
    with pytest.raises(SourceError, match=r"cannot send a row.*exclude its table\.$"), session.errors("copy"):
        session.catalog().execute(f"SELECT public.fails('{code}', '{words}')")


def test_wal_that_is_gone_is_fatal(session: Session) -> None:
    words = "requested WAL segment pg_wal/000000010000000000000001 has already been removed"
    query = f"SELECT public.fails('58P01', '{words}')"
    with pytest.raises(SourceError, match=r"has lost WAL that the slot still needs.*start anew"):
        list(session.stream(query, batch_bytes=1))
    with pytest.raises(SourceError, match="has lost WAL that the slot still needs"), session.errors("capture"):
        session.catalog().execute(query.encode())


@gated
def test_a_limit_on_temporary_files_is_fatal_and_the_hint_leads_on(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    scene.source().prepare()
    scene.execute("INSERT INTO t SELECT i, repeat('x', 200) FROM generate_series(1, 40000) i")
    database = scene.value("SELECT current_database()")
    scene.execute(f"ALTER DATABASE {database} SET temp_file_limit = '1MB'")
    with pytest.raises(ConfigurationError, match=r"temp_file_limit.*SET temp_file_limit = -1"):
        scene.capture()
    scene.execute(f"ALTER DATABASE {database} SET temp_file_limit = -1")
    assert scene.capture()[-1].done


@pytest.mark.parametrize(("code", "words"), [("53200", "out of memory"), ("XX000", "could not read a page")])
def test_what_may_pass_is_tried_again(session: Session, code: str, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        list(session.stream(f"SELECT public.fails('{code}', '{words}')", batch_bytes=1))
