"""A commit needs a replication origin that somebody holds: a former holder is ended, somebody else is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.target.postgres.naming import holder_session
from tests.integration.target.conftest import Scene
from tests.support.log_rows import Row
from tests.support.variants import gated

_HOLD = "SELECT pg_replication_origin_session_setup(roname) FROM pg_replication_origin WHERE roname LIKE '%:demo:0'"
_MARKED = "SELECT (remote_lsn - '0/0')::int FROM pg_replication_origin_status WHERE external_id LIKE '%:demo:0'"


@contextmanager
def holding(scene: Scene, name: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(scene.dsn, autocommit=True, application_name=name) as connection:
        connection.execute(_HOLD)
        pid = connection.info.backend_pid
        yield connection
    scene.run(f"SELECT pg_terminate_backend({pid}, 60000)")


def staged(scene: Scene, last: int) -> StagedUnit:
    unit = scene.unit(last)
    found = scene.stage(unit, [Row(seqno=last, operation="I", values=(str(last), "1", "x"))])
    return replace(found, unit=replace(unit, row_count=1, origin=CommitOrigin(offset=100 + last)))


@gated
def test_a_former_holder_that_stands_still_with_the_origin_is_ended(scene: Scene, accounts: Relation) -> None:
    scene.start()
    with holding(scene, holder_session("demo", 0, "former")) as former:
        scene.target.take(0, generation=scene.generation, token="claim1")
        scene.commit(staged(scene, 5))
        with pytest.raises(psycopg.OperationalError):
            former.execute("SELECT 1")
    assert scene.run(_MARKED) == [(105,)]


@gated
def test_a_session_of_somebody_else_is_named_and_nothing_is_applied(scene: Scene, accounts: Relation) -> None:
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    unit = staged(scene, 5)
    with holding(scene, "somebody else") as other:
        pid = other.info.backend_pid
        with pytest.raises(Unavailable, match=str(pid)):
            scene.commit(unit)
    assert scene.seqnos() == [-1]
    scene.commit(unit)
    assert scene.seqnos() == [5]
    assert scene.run(_MARKED) == [(105,)]


@gated
def test_a_session_that_a_pooler_kept_with_an_origin_lets_it_go_first(scene: Scene, accounts: Relation) -> None:
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    scene.target._session.connection().execute(_HOLD)  # type: ignore[attr-defined]
    scene.commit(staged(scene, 5))
    assert scene.seqnos() == [5]
    assert scene.run(_MARKED) == [(105,)]
    with holding(scene, "somebody else"):
        pass


def test_what_a_session_does_beside_its_commits_carries_none(scene: Scene, accounts: Relation) -> None:
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    scene.commit(staged(scene, 5))
    scene.target.take(0, generation=scene.generation, token="claim2")
    origins = "SELECT (pg_xact_commit_timestamp_origin(xmin)).roident::int <> 0 FROM "
    assert scene.run(f"{origins} accounts") == [(True,)]
    assert scene.run(f"{origins} parallel_apply.position") == [(False,)]


@gated
def test_a_commit_that_is_refused_lets_the_origin_go(scene: Scene, accounts: Relation) -> None:
    scene.start()
    scene.target.take(0, generation=scene.generation, token="claim1")
    scene.run("INSERT INTO accounts VALUES (5, 0, 'in the way')")
    with pytest.raises(Exception, match="accounts"):
        scene.commit(staged(scene, 5))
    with holding(scene, "somebody else"):
        pass
    scene.run("DELETE FROM accounts")
    scene.commit(staged(scene, 5))
    assert scene.run(_MARKED) == [(105,)]
