"""A unit is committed once, by whoever holds its channel; sessions of former holders end."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from tests.integration.target.conftest import CLAIM, RUN1, Known, Scene, insert
from tests.support.log_rows import Row, clustered
from tests.support.rig import execute
from tests.support.variants import gated


@gated
def test_a_unit_committed_twice_changes_nothing(three: Scene) -> None:
    unit = three.unit(1, after=0)
    staged = three.stage(unit, [Row(seqno=1, operation="D", values=("1", None, None))])
    three.commit(staged)
    three.commit(staged)
    assert three.run("SELECT id FROM accounts ORDER BY id") == [(2,), (3,)]
    assert three.seqnos() == [1]


def test_a_zombie_of_an_older_claim_changes_nothing(three: Scene) -> None:
    zombie = three.another().target
    staged = three.stage(three.unit(1, after=0), [Row(seqno=1, operation="U", values=("1", "666", "x"))])
    three.target.take(0, generation=three.generation, token="claim2")
    assert three.staging() == []
    with pytest.raises(OwnershipLost):
        three.commit(staged, by=zombie)
    assert three.run("SELECT balance FROM accounts WHERE id = 1") == [(0,)]
    assert three.seqnos() == [0]


def test_a_zombie_of_an_older_generation_changes_nothing(three: Scene) -> None:
    zombie = three.another().target
    old = three.generation
    staged = three.stage(three.unit(1, after=0), [Row(seqno=1, operation="U", values=("1", "666", "x"))])
    three.session.acquire(RUN1)
    with pytest.raises(OwnershipLost):
        three.commit(staged, by=zombie)
    with pytest.raises(OwnershipLost):
        zombie.take(0, generation=old, token="claim1")
    assert three.seqnos() == [0]


def test_staging_of_an_attempt_that_was_not_acknowledged_is_never_merged(three: Scene) -> None:
    unit = three.unit(1, after=0)
    rows = [Row(seqno=1, operation="U", values=("1", "5", "x"))]
    three.stage(unit, rows)
    three.commit(three.stage(unit, rows))
    assert three.run("SELECT balance FROM accounts WHERE id = 1") == [(5,)]
    assert len(three.staging()) == 1
    three.target.discard(unit.token)
    assert three.staging() == []


def test_taking_a_channel_ends_the_sessions_of_its_former_holder(three: Scene) -> None:
    former = three.another().target
    former.take(0, generation=three.generation, token="claim1")
    three.target.take(0, generation=three.generation, token="claim2")
    names = three.run(
        "SELECT count(DISTINCT application_name) FROM pg_stat_activity WHERE application_name LIKE 'pa:%:0:%'"
    )
    assert names == [(1,)]
    # An idle session that was ended is replaced without an error.
    assert [position.claim for position in former.positions()] == ["claim2"]


def test_a_former_holder_that_ends_by_itself_is_not_waited_for(three: Scene) -> None:
    former = three.another().target
    former.take(0, generation=three.generation, token="claim1")
    holder = former._session.connection().info.backend_pid  # type: ignore[attr-defined]
    session = three.target._session  # type: ignore[attr-defined]
    with session.transaction("end") as connection:
        # From here on the transaction has a list of sessions that does not change.
        assert connection.execute("SELECT pid FROM pg_stat_activity WHERE pid = %s", [holder]).fetchone()
        execute(three.dsn, f"SELECT pg_terminate_backend({holder}, 5000)")
        session.end_holders(["0"], but_token="")


@gated
def test_a_loader_whose_session_is_ended_lost_the_ownership(three: Scene) -> None:
    unit = three.unit(1, after=0)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from clustered(three.relations, [insert(1, "7", "1", "x")])
        three.target.take(0, generation=three.generation, token="claim2")
        yield from clustered(three.relations, [insert(1, "8", "1", "x")])

    with pytest.raises(OwnershipLost):
        three.loader(0, unit.token).load(batches(), "x")


def test_a_loader_whose_session_breaks_otherwise_may_try_again(three: Scene) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from clustered(three.relations, [insert(1, "7", "1", "x")])
        three.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pa:%:0:%'")

    with pytest.raises(Unavailable):
        three.loader(0, CLAIM).load(batches(), "x")


def test_a_session_is_not_ended_while_it_waits_for_the_log(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.start()
    limits: list[object] = []

    def slow_definitions(_: Known) -> tuple[Relation, ...]:
        connection = scene.target._session.connection()  # type: ignore[attr-defined]
        limits.extend(connection.execute("SHOW idle_in_transaction_session_timeout").fetchone())
        return ()

    monkeypatch.setattr(Known, "definitions", slow_definitions)
    scene.target.note_tables()
    assert limits == ["0"]
