"""Lanes, servers and tasks that are killed, or wake too late: rows and positions stay together in MariaDB."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_parallel_apply.demo.mariadb import MariaDbServer
from airflow_parallel_apply.pipeline.errors import OwnershipLost
from airflow_parallel_apply.pipeline.model.epoch import Branch
from airflow_parallel_apply.pipeline.run import OpenedRun
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.contract.targets import TARGETS
from tests.contract.test_staging import Side
from tests.support.mariadb_rig import MariaDbRig
from tests.support.queue_service import until
from tests.support.step_process import Fault, Order
from tests.support.steps import StepProcess, Steps
from tests.support.variants import gated

ROOM = "airflow_parallel_apply.pipeline.target.mariadb"
PLACES = {
    "while it stages": Fault(at=f"{ROOM}.table_load:TableLoad.flush", when="after", call=2),
    "between staging and commit": Fault(at=f"{ROOM}.target:MariaDbTarget.commit", when="before", call=2),
    "inside the transaction": Fault(at=f"{ROOM}.target:move", when="before", call=2),
    "between commit and the end of staging": Fault(at=f"{ROOM}.target:drop_staging", when="before", call=2),
    "between commit and finish": Fault(at=f"{ROOM}.target:MariaDbTarget.commit", when="after", call=2),
    "inside the critical transaction": Fault(at=f"{ROOM}.steps:Replayer.run", when="after"),
}
"""The places where a lane dies, or falls asleep."""
QUERIES = ("SELECT id, v FROM t", "SELECT at, note FROM entry")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steps]:
    with Steps(tmp_path_factory.mktemp("steps")) as found:
        yield found


@pytest.fixture
def written(maria: MariaDbRig) -> MariaDbRig:
    """Several units for each of three channels, a serialization point, rows without a key."""
    rig = maria.rig.having(channels=3, epoch_max_changes=150, unit_max_bytes=1000, lease=timedelta(seconds=3))
    maria.make(
        ["CREATE TABLE t (id integer PRIMARY KEY, v text)", "CREATE TABLE entry (at integer, note text)"],
        ["CREATE TABLE t (id int PRIMARY KEY, v longtext)", "CREATE TABLE entry (at int, note longtext)"],
    )
    rig.prepare()
    rig.write(
        *(f"INSERT INTO t SELECT i, 'a' FROM generate_series({start}, {start + 99}) i" for start in range(0, 500, 100)),
        "INSERT INTO entry SELECT i % 3, 'same' FROM generate_series(1, 100) i",
    )
    rig.transaction("TRUNCATE t", "INSERT INTO t SELECT i, 'b' FROM generate_series(1, 200) i")
    rig.write(
        *(f"UPDATE t SET v = v || {step} WHERE id % 4 = {step % 4}" for step in range(4)),
        "UPDATE t SET id = id + 1000 WHERE id % 7 = 0",
    )
    return replace(maria, rig=rig)


def start_lane(maria: MariaDbRig, steps: Steps, opened: OpenedRun, fault: Fault | None) -> StepProcess:
    rig = maria.rig
    return steps.start(
        Order(
            step="lane",
            config=rig.config,
            source_dsn=rig.source_dsn,
            target_dsn=rig.target_dsn,
            ledger_dsn=rig.ledger_dsn,
            run_id=opened.run_id,
            opened=opened,
            fault=fault,
        )
    )


def require_equal(maria: MariaDbRig) -> None:
    """The same rows on both sides, all positions at one seqno, no staging, nobody who holds anything."""
    for query in QUERIES:
        maria.require_equal(query)
    assert len(maria.read("SELECT DISTINCT seqno FROM parallel_apply.position")) == 1
    assert maria.read("SHOW TABLES IN parallel_apply LIKE 's\\_%'") == []


@gated
@pytest.mark.parametrize("place", PLACES)
def test_what_a_killed_lane_held_is_carried_on_by_another(written: MariaDbRig, steps: Steps, place: str) -> None:
    opened = written.rig.open("run")
    lane = start_lane(written, steps, opened, PLACES[place])
    assert lane.wait() == -signal.SIGKILL, lane.tail()
    written.rig.lane(opened, 1)
    written.rig.close(opened)
    require_equal(written)


@gated
@pytest.mark.parametrize(
    "place",
    [
        "inside the transaction",
        pytest.param("between staging and commit", marks=pytest.mark.long),
        pytest.param("inside the critical transaction", marks=pytest.mark.long),
    ],
)
def test_a_lane_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(
    written: MariaDbRig, steps: Steps, place: str
) -> None:
    opened = written.rig.open("run")
    lane = start_lane(written, steps, opened, replace(PLACES[place], signal=signal.SIGSTOP))
    lane.wait_stopped()
    written.rig.lane(opened, 1)
    written.rig.close(opened)
    require_equal(written)
    before = written.read("SELECT channel, seqno, generation FROM parallel_apply.position")
    lane.signal(signal.SIGCONT)
    lane.wait()
    assert written.read("SELECT channel, seqno, generation FROM parallel_apply.position") == before
    require_equal(written)


@gated
@pytest.mark.parametrize("place", ["while it stages", "inside the transaction", "inside the critical transaction"])
def test_a_server_that_is_killed_under_a_lane_has_rows_and_positions_of_one_moment(
    written: MariaDbRig, steps: Steps, place: str
) -> None:
    opened = written.rig.open("run")
    lane = start_lane(written, steps, opened, replace(PLACES[place], signal=signal.SIGSTOP))
    lane.wait_stopped()
    written.server.kill()
    written.server.start()
    lane.signal(signal.SIGCONT)
    lane.wait()
    again = written.rig.open("run")
    written.rig.apply(again)
    written.rig.close(again)
    require_equal(written)


def test_a_commit_of_a_claim_that_another_took_over_is_refused_by_the_target_itself(
    side: Side, mariadb_server: MariaDbServer
) -> None:
    side.take(0, "zombie")
    zombie = side.opened[-1]
    staged = side.stage(Branch(0), "zombie", 1)
    # Whoever takes the channel may be on another host, and end no session.
    mariadb_server.run("UPDATE parallel_apply.position SET claim = 'heir' WHERE channel = 0")
    with pytest.raises(OwnershipLost):
        zombie.commit(side.unit(Branch(0), "zombie"), [Merge(staged)])
    mariadb_server.run("UPDATE parallel_apply.position SET claim = 'zombie', generation = generation + 1")
    with pytest.raises(OwnershipLost):
        zombie.commit(side.unit(Branch(0), "zombie"), [Merge(staged)])
    assert side.admitted.keys() == set()


def test_a_repeated_commit_changes_nothing(side: Side) -> None:
    side.take(0, "claim")
    staged = side.stage(Branch(0), "claim", 1, 2)
    for _ in range(2):
        side.opened[-1].commit(side.unit(Branch(0), "claim"), [Merge(staged)])
    assert side.admitted.keys() == {1, 2}


def test_a_task_whose_claim_another_took_stages_nothing_and_says_so(side: Side, mariadb_server: MariaDbServer) -> None:
    side.take(0, "former")
    side.take(0, "heir")
    with pytest.raises(OwnershipLost):
        side.stage(Branch(0), "former", 1)
    assert mariadb_server.run("SHOW TABLES IN parallel_apply LIKE 's\\_%'") == ""


@gated
def test_who_takes_a_channel_ends_the_sessions_of_its_former_holder_and_no_others(
    side: Side, mariadb_server: MariaDbServer
) -> None:
    side.take(0, "former")
    side.take(1, "beside")
    former, beside = (_session(mariadb_server, claim) for claim in ("former", "beside"))
    side.take(0, "heir")
    # The server lists a session for a moment longer than it holds anything.
    until(lambda: former not in _sessions(mariadb_server))
    assert beside in _sessions(mariadb_server)
    side.take(None, "all")
    assert mariadb_server.run("SELECT claim FROM parallel_apply.holder").split() == ["all"]


@pytest.fixture
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    made = Side(TARGETS["mariadb"](request))
    yield made
    for session in made.opened:
        session.close()


def _session(server: MariaDbServer, claim: str) -> str:
    """The one that works under a claim."""
    return server.run(f"SELECT IS_USED_LOCK(name) FROM parallel_apply.holder WHERE claim = '{claim}'").strip()


def _sessions(server: MariaDbServer) -> set[str]:
    return set(server.run("SELECT ID FROM information_schema.PROCESSLIST").split())
