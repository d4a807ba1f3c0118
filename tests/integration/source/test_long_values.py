"""A value that the source can never send stops a run at once, with what to do, instead of being tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from tests.integration.source.conftest import Scene


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


@pytest.mark.parametrize(("code", "words"), [("53200", "out of memory"), ("XX000", "could not read a page")])
def test_what_may_pass_is_tried_again(session: Session, code: str, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        list(session.stream(f"SELECT public.fails('{code}', '{words}')", batch_bytes=1))
