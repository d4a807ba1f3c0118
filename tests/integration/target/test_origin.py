"""Commits carry a replication origin: who follows the target's own changes tells by it what was applied."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Consistency, DdlPolicy, EpochProtocol, Start
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.finding import Severity
from airflow_parallel_apply.pipeline.target.open import target_connector
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_BOTH = pytest.mark.parametrize(
    "consistency", [Consistency.CHANNEL, pytest.param(Consistency.EPOCH, marks=pytest.mark.long)]
)
_PREPARED = {"consistency": Consistency.EPOCH, "epoch_protocol": EpochProtocol.TWO_PHASE}
_ORIGINS = (
    "SELECT split_part(roname, ':', 4)::int FROM pg_replication_origin WHERE starts_with(roname, "
    "'parallel_apply:' || (SELECT oid FROM pg_database WHERE datname = current_database()) || ':p:') ORDER BY 1"
)


class Follower:
    """Followers of the target's tables: two slots, one that is sent everything, and one that is sent local changes."""

    def __init__(self, rig: Rig, *, two_phase: bool = False) -> None:
        """`two_phase`: it is told of what is prepared when it is prepared."""
        self._rig = rig
        self._options = ", 'two_phase', 'on'" if two_phase else ""
        self._name = f"f_{uuid.uuid4().hex[:8]}"
        execute(
            rig.target_dsn,
            f"CREATE PUBLICATION {self._name} FOR TABLES IN SCHEMA public",
            *(
                f"SELECT pg_create_logical_replication_slot('{self._name}_{of}', 'pgoutput', false, {two_phase})"
                for of in ("any", "none")
            ),
        )

    def changes(self, origin: str) -> list[str]:
        """The kinds of messages that tell of changes since the last look."""
        found = self._rig.rows(
            f"SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_get_binary_changes('{self._name}_{origin}', NULL, "
            f"NULL, 'proto_version', '4', 'publication_names', '{self._name}', 'origin', '{origin}'{self._options})"
        )
        return [kind for (kind,) in found if kind in "IUDT"]


@pytest.fixture
def applying(rig: Rig) -> Rig:
    rig = rig.having(channels=3, epoch_max_changes=20, start=Start.COPY, ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v text)")
    execute(rig.source_dsn, "INSERT INTO t SELECT i, i, 'copied' FROM generate_series(1, 50) i")
    return rig


@gated
@pytest.mark.parametrize(
    ("consistency", "protocol"),
    [
        (Consistency.CHANNEL, EpochProtocol.AUTO),
        pytest.param(Consistency.EPOCH, EpochProtocol.LEADER_MERGE, marks=pytest.mark.long),
        pytest.param(Consistency.EPOCH, EpochProtocol.TWO_PHASE, marks=pytest.mark.long),
    ],
)
def test_who_follows_the_target_is_sent_nothing_that_was_applied(
    applying: Rig, consistency: Consistency, protocol: EpochProtocol
) -> None:
    rig = applying.having(consistency=consistency, epoch_protocol=protocol)
    install(rig.source_dsn)
    follower = Follower(rig)
    rig.run("copies")
    assert follower.changes("any").count("I") == 50
    assert follower.changes("none") == []
    # Values that change hands, a barrier, DDL, and a load behind it.
    rig.write("INSERT INTO t SELECT i, i, 'new' FROM generate_series(51, 150) i")
    for turn in range(5):
        rig.write(f"UPDATE t SET u = u + 1000 * (CASE WHEN id % 2 = {turn % 2} THEN 1 ELSE -1 END) WHERE id < 40")
        rig.write("UPDATE t SET u = CASE id WHEN 60 THEN -61 ELSE -60 END WHERE id IN (60, 61)")
        rig.write("UPDATE t SET u = CASE id WHEN 60 THEN 61 ELSE 60 END WHERE id IN (60, 61)")
    rig.run("applies")
    assert rig.comparison().equal
    rig.write("TRUNCATE t")
    rig.write("ALTER TABLE t ADD COLUMN w int DEFAULT 7", ddl("ALTER TABLE t ADD COLUMN w int DEFAULT 7"))
    rig.write("INSERT INTO t SELECT i, i, 'again' FROM generate_series(1, 700) i")
    rig.run("serial")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    assert rig.comparison().equal
    execute(rig.target_dsn, "INSERT INTO t VALUES (9001, 9001, 'local')", "UPDATE t SET v = 'local' WHERE id = 9001")
    applied = follower.changes("any")
    assert applied.count("I") > 1400
    assert applied.count("T") >= 2
    assert follower.changes("none") == ["I", "U"]


@_BOTH
def test_an_origin_tells_the_sources_offset_and_commit_time(applying: Rig, consistency: Consistency) -> None:
    rig = applying.having(consistency=consistency, epoch_protocol=EpochProtocol.LEADER_MERGE)
    rig.run("copies")
    rig.write("UPDATE t SET v = 'now'")
    rig.run("applies")
    log = open_reader(rig.config.log_url)
    (last,) = log.transactions(log.state().last_seqno - 1, log.state().last_seqno).to_pylist()
    found = rig.rows(
        "SELECT DISTINCT o.external_id, (x.c).timestamp, (o.remote_lsn - '0/0')::bigint "
        "FROM (SELECT pg_xact_commit_timestamp_origin(xmin) AS c FROM t) x "
        "JOIN pg_replication_origin_status o ON o.local_id = (x.c).roident ORDER BY 1"
    )
    ((oid,),) = rig.rows("SELECT oid FROM pg_database WHERE datname = current_database()")
    channels = range(1 if consistency is Consistency.EPOCH else 3)
    assert found == [(f"parallel_apply:{oid}:p:{c}", last["commit_time"], last["end_offset"]) for c in channels]


@gated
def test_branches_carry_it_where_they_are_prepared_and_where_they_are_committed(applying: Rig) -> None:
    rig = applying.having(**_PREPARED)
    follower, informed = Follower(rig), Follower(rig, two_phase=True)
    rig.run("copies")
    rig.write("UPDATE t SET v = 'now'")
    rig.write("INSERT INTO t SELECT i, i, 'new' FROM generate_series(51, 400) i")
    rig.run("applies")
    execute(rig.target_dsn, "INSERT INTO t VALUES (9001, 9001, 'local')")
    for each in (follower, informed):
        assert each.changes("any").count("U") == 50
        assert each.changes("none") == ["I"]


@pytest.mark.long
def test_origins_go_with_the_channels_and_with_the_pipeline(applying: Rig) -> None:
    applying.run("three")
    assert applying.rows(_ORIGINS) == [(0,), (1,), (2,)]
    execute(applying.target_dsn, "SELECT pg_replication_origin_create('parallel_apply:999999:is gone:0')")
    fewer = applying.having(channels=2)
    fewer.run("two")
    assert fewer.rows(_ORIGINS) == [(0,), (1,)]
    assert fewer.rows("SELECT FROM pg_replication_origin WHERE roname LIKE '%is gone%'") == []
    execute(fewer.target_dsn, target_connector(fewer.target).drop_commands("p")[-1])
    assert fewer.rows(_ORIGINS) == []
    fewer.run("made again")
    dropped = drop_pipeline("p", fewer.source, fewer.target, log_url=fewer.config.log_url)
    assert "dropped 2 replication origins at the target" in str(dropped.to_json())
    assert fewer.rows(_ORIGINS) == []


@pytest.fixture
def role(target_dsn: str) -> Iterator[str]:
    name = f"applier_{uuid.uuid4().hex[:8]}"
    execute(
        target_dsn,
        f"CREATE ROLE {name} LOGIN",
        f"GRANT CREATE ON DATABASE {psycopg.conninfo.conninfo_to_dict(target_dsn)['dbname']} TO {name}",
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"ALTER TABLE t OWNER TO {name}",
    )
    yield name
    execute(target_dsn, f"REASSIGN OWNED BY {name} TO CURRENT_USER", f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@gated
def test_a_role_without_the_right_applies_as_before_and_is_told_the_grant(rig: Rig, role: str) -> None:
    execute(rig.source_dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    rig = rig.having(channels=2, start=Start.EMPTY)
    as_role = Rig(
        config=rig.config,
        source_dsn=rig.source_dsn,
        target_dsn=psycopg.conninfo.make_conninfo(rig.target_dsn, user=role),
    )
    follower = Follower(rig)
    as_role.prepare()
    rig.write("INSERT INTO t SELECT generate_series(1, 30)")
    as_role.run("without")
    assert follower.changes("none").count("I") == 30
    (told,) = [
        one
        for one in check_pipeline(rig.config, as_role.source, as_role.target).findings
        if one.where == "replication origin"
    ]
    assert told.severity is Severity.WARNING
    execute(rig.target_dsn, *told.fix)
    rig.write("UPDATE t SET id = id + 100")
    as_role.run("with")
    assert follower.changes("none") == []
    assert as_role.comparison().equal
    assert not [
        one
        for one in check_pipeline(rig.config, as_role.source, as_role.target).findings
        if one.where == "replication origin"
    ]


@pytest.fixture
def full_server(rig: Rig) -> Iterator[Rig]:
    """Others have all the origins that the target's server has room for, but one."""
    room = "(SELECT setting::int FROM pg_settings WHERE name = 'max_active_replication_origins')"
    rig.rows(f"SELECT pg_replication_origin_create('theirs ' || n) FROM generate_series(2, {room}) n")
    yield rig
    rig.rows("SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname LIKE 'theirs %'")


@pytest.mark.long
def test_a_server_without_room_is_told_of_and_commits_carry_none(full_server: Rig) -> None:
    rig = full_server.having(channels=2)
    rig.both("CREATE TABLE t (id int PRIMARY KEY)")
    rig.prepare()
    follower = Follower(rig)
    rig.write("INSERT INTO t SELECT generate_series(1, 30)")
    rig.run("without")
    assert rig.rows(_ORIGINS) == []
    assert follower.changes("none").count("I") == 30
    (told,) = [
        one for one in check_pipeline(rig.config, rig.source, rig.target).findings if one.where == "replication origin"
    ]
    assert "2 channels need as many" in told.what
    assert "max_active_replication_origins = " in told.fix[0]
