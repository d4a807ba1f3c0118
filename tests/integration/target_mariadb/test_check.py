"""Tables of MariaDB that cannot hold the source's rows are told before anything is written, with what mends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_parallel_apply.pipeline.admin.drop import drop_pipeline
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Consistency, DdlPolicy, EpochProtocol, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError, TargetError
from airflow_parallel_apply.pipeline.model.finding import Finding, errors
from airflow_parallel_apply.pipeline.target.mariadb.address import parse_address
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from tests.support.mariadb_rig import MariaDbRig
from tests.support.variants import GATED, gated, variants

SOURCE = [
    "CREATE TABLE good (id integer PRIMARY KEY, v text)",
    "CREATE TABLE missing (id integer PRIMARY KEY, at timestamptz, n numeric(10,2))",
    "CREATE TABLE narrow (id bigint PRIMARY KEY, f real, n numeric(10,4), at timestamp, t time, u integer, b bytea)",
    "CREATE TABLE texts (code text PRIMARY KEY, v text, w varchar(10))",
    "CREATE TABLE odd (k numeric PRIMARY KEY, v text)",
    "CREATE TABLE wide (id integer PRIMARY KEY, gone text, made text)",
    "CREATE TABLE lacks (id integer PRIMARY KEY, v text)",
    "CREATE TABLE elsewhere (id integer PRIMARY KEY)",
    "CREATE TABLE triggered (id integer PRIMARY KEY)",
    "CREATE TABLE touched (at timestamptz PRIMARY KEY, v integer)",
]
TARGET = [
    "CREATE TABLE good (id int PRIMARY KEY, v longtext, more int DEFAULT 7)",
    "CREATE TABLE narrow (id int PRIMARY KEY, f float, n decimal(10,2), at datetime, t time(3), u int unsigned,"
    " b binary(16))",
    "CREATE TABLE texts (code varchar(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY,"
    " v text CHARACTER SET latin1, w char(10))",
    "CREATE TABLE odd (k varchar(100) PRIMARY KEY, v longtext)",
    "CREATE TABLE wide (id int PRIMARY KEY, made longtext GENERATED ALWAYS AS ('x') VIRTUAL, own int NOT NULL)",
    "CREATE TABLE lacks (id int, v longtext, PRIMARY KEY (id, v(10)))",
    "CREATE TABLE elsewhere (id int PRIMARY KEY) ENGINE = MyISAM",
    "CREATE TABLE touched (at timestamp(6) DEFAULT '2001-01-01' ON UPDATE CURRENT_TIMESTAMP(6) PRIMARY KEY, v int)",
    "CREATE TABLE triggered (id int PRIMARY KEY)",
    "CREATE TRIGGER acts BEFORE INSERT ON triggered FOR EACH ROW SET NEW.id = NEW.id + 1",
]
REFUSED = {
    "public.missing": {None},
    "public.narrow": {"id", "f", "n", "at", "t", "u", "b"},
    "public.texts": {"code", "v", "w"},
    "public.odd": {"k"},
    "public.wide": {"gone", "made", "own"},
    "public.lacks": {None},
    "public.elsewhere": {None},
    "public.triggered": {None},
    "public.touched": {"at"},
}


@gated
def test_each_column_that_would_not_hold_the_sources_values_is_named_before_anything_is_written(
    maria: MariaDbRig,
) -> None:
    maria.make(SOURCE, TARGET)
    found = _errors(maria)
    named: dict[str, set[str | None]] = {}
    for finding in found:
        named.setdefault(finding.where, set()).add(finding.column)
    assert named == REFUSED
    with pytest.raises(TargetError, match=r"public\.narrow: column at"):
        maria.rig.prepare()
    assert maria.read("SHOW DATABASES LIKE 'parallel_apply'") == []


UNFIT = {
    "a key that only a hash holds": (
        "(id text PRIMARY KEY, v text)",
        "(id longtext COLLATE utf8mb4_nopad_bin NOT NULL, v longtext, UNIQUE (id))",
        "too long for an index",
    ),
    "a key that only a hash holds, of letters": (
        "(id text PRIMARY KEY, v text)",
        "(id varchar(1000) COLLATE utf8mb4_nopad_bin NOT NULL, v longtext, UNIQUE (id))",
        "too long for an index",
    ),
    "former rows": (
        "(id text PRIMARY KEY, v text)",
        "(id varchar(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY, v longtext) WITH SYSTEM VERSIONING",
        "system versioning",
    ),
    "another case": (
        "(id text PRIMARY KEY, v text)",
        "(ID varchar(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY, v longtext)",
        "column id is called ID",
    ),
    "a column that the source computes": (
        "(id text PRIMARY KEY, v text, n text GENERATED ALWAYS AS (v || '!') STORED)",
        "(id varchar(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY, v longtext, n longtext)",
        "column n is computed by the source",
    ),
    "blanks that end a key": (
        "(id bpchar PRIMARY KEY, v text)",
        "(id varchar(9) COLLATE utf8mb4_nopad_bin PRIMARY KEY, v longtext)",
        "tells apart what the source takes for equal",
    ),
}


@gated
@pytest.mark.parametrize("case", variants(UNFIT, gated=["a key that only a hash holds, of letters", "another case"]))
def test_what_would_keep_rows_from_arriving_is_mended_as_check_says(maria: MariaDbRig, case: str) -> None:
    source, target, says = UNFIT[case]
    maria.make([f"CREATE TABLE t {source}"], [f"CREATE TABLE t {target}"])
    found = _errors(maria)
    assert says in found[0].what
    for finding in found:
        maria.server.run(";".join(finding.fix), database="test")
    maria.rig.prepare()
    maria.rig.write("INSERT INTO t VALUES ('a', 'x'), ('b', 'y')", "UPDATE t SET v = 'z' WHERE id = 'b'")
    maria.rig.write("UPDATE t SET id = 'a  ' WHERE id = 'a'")
    maria.rig.run()
    maria.require_equal("SELECT concat('[', id, ']'), v FROM t", at_source="SELECT format('[%s]', id), v FROM t")


@gated
def test_columns_that_are_one_name_at_the_target_are_refused(maria: MariaDbRig) -> None:
    maria.make(['CREATE TABLE t (id integer PRIMARY KEY, "a" text, "A" text)'], [])
    (found,) = _errors(maria)
    assert "differ in their case only" in found.what
    assert not found.fix


@pytest.mark.parametrize(
    "source",
    [
        'CREATE TABLE t (id integer PRIMARY KEY, "v " text)',
        pytest.param('CREATE TABLE "t " (id integer PRIMARY KEY)', marks=GATED),
        pytest.param('CREATE TABLE t (id integer PRIMARY KEY, "😀" text)', marks=GATED),
    ],
)
def test_names_that_the_target_cannot_have_are_told_as_such(maria: MariaDbRig, source: str) -> None:
    maria.make([source], [])
    (found,) = _errors(maria)
    assert "names that end in a blank" in found.what
    assert not found.fix


@gated
def test_a_table_that_is_too_wide_for_staging_is_refused(maria: MariaDbRig) -> None:
    wide, too_wide = (", ".join(f"c{place} smallint" for place in range(count)) for count in (1013, 1014))
    maria.make(
        [
            f"CREATE TABLE {name} (id integer PRIMARY KEY, {columns})"
            for name, columns in (("a", wide), ("b", too_wide))
        ],
        [f"CREATE TABLE {name} (id int PRIMARY KEY, {columns})" for name, columns in (("a", wide), ("b", too_wide))],
    )
    (found,) = _errors(maria)
    assert found.what == "public.b has 1015 columns, and staging at the target takes 1014"
    maria.server.run("DROP TABLE b", database="test")
    rig = maria.rig.having(tables=TablePatterns(exclude=("public.b",)))
    rig.prepare()
    rig.write("INSERT INTO a (id, c7) VALUES (1, 2)")
    rig.run()
    maria.require_equal("SELECT id, c7 FROM a")


@gated
def test_what_check_proposes_mends_what_it_finds(maria: MariaDbRig) -> None:
    maria.make(SOURCE, TARGET)
    maria.server.run("ALTER TABLE wide DROP COLUMN own", database="test")
    for finding in _errors(maria):
        for command in finding.fix:
            maria.server.run(command, database="test")
    assert {finding.where for finding in _errors(maria)} == {"public.odd"}
    maria.rig.write("DROP TABLE odd")
    assert maria.rig.prepare()


@gated
def test_a_column_that_may_have_been_renamed_is_not_proposed_to_be_added(maria: MariaDbRig) -> None:
    maria.make(
        ["CREATE TABLE t (id integer PRIMARY KEY, new text)"], ["CREATE TABLE t (id int PRIMARY KEY, old longtext)"]
    )
    (found,) = _errors(maria)
    assert (found.column, found.fix) == ("new", ())
    assert "RENAME COLUMN `old` TO `new`" in found.note
    assert "ADD COLUMN `new` longtext" in found.note


def test_rows_that_are_there_already_are_refused_with_start_empty(maria: MariaDbRig) -> None:
    maria.make(SOURCE[:1], [TARGET[0], "INSERT INTO good VALUES (1, 'x', 1)"])
    with pytest.raises(TargetError, match=r"public\.good has rows at the target"):
        maria.rig.prepare()


@gated
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"ddl": DdlPolicy.APPLY}, "cannot change its tables' definitions"),
        ({"consistency": Consistency.EPOCH, "epoch_protocol": EpochProtocol.TWO_PHASE}, "prepares no transactions"),
    ],
)
def test_a_pipeline_that_asks_for_more_than_the_target_can_do_is_refused(
    maria: MariaDbRig, changes: dict[str, object], word: str
) -> None:
    maria.make(SOURCE[:1], TARGET[:1])
    with pytest.raises(ConfigurationError, match=word):
        maria.rig.having(**changes).prepare()


@gated
@pytest.mark.parametrize(
    ("setting", "value", "given", "says"),
    [
        ("innodb_flush_log_at_trx_commit", "2", "1", "may take commits back"),
        ("enforce_storage_engine", "Aria", "NULL", "makes every table Aria"),
    ],
)
def test_a_server_that_would_lose_commits_or_parts_of_them_is_refused(
    maria: MariaDbRig, setting: str, value: str, given: str, says: str
) -> None:
    maria.make(SOURCE[:1], TARGET[:1])
    maria.server.run(f"SET GLOBAL {setting} = {value}")
    try:
        with pytest.raises(ConfigurationError, match=says):
            maria.rig.prepare()
    finally:
        maria.server.run(f"SET GLOBAL {setting} = {given}")


def test_no_limit_of_the_server_ends_a_transaction_that_waits_for_its_next_rows(maria: MariaDbRig) -> None:
    limits = ("idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout")
    maria.server.run(";".join(f"SET GLOBAL {limit} = 5" for limit in limits))
    session = Session(parse_address(maria.rig.target_dsn), pipeline="demo")
    try:
        found = session.rows("SHOW SESSION VARIABLES WHERE Variable_name LIKE 'idle%%timeout'")
    finally:
        session.close()
        maria.server.run(";".join(f"SET GLOBAL {limit} = 0" for limit in limits))
    assert dict(found) == dict.fromkeys(limits, "0")


@gated
def test_a_user_without_a_right_is_told_how_it_gets_it(maria: MariaDbRig) -> None:
    """A server of an older release shows it no trigger."""
    maria.make(SOURCE[:1], TARGET[:1])
    maria.server.run("CREATE OR REPLACE USER plain@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON test.* TO plain@'%'")
    rig = replace(maria.rig, target_dsn=maria.rig.target_dsn.replace("root@", "plain@"))
    found = check_pipeline(rig.config, rig.source, rig.target).findings
    wanted = {"may not see triggers", "may not make it"}
    assert all(any(word in finding.what for finding in found) for word in wanted)
    maria.server.run(";".join(command for finding in found for command in finding.fix))
    rig.prepare()
    rig.write("INSERT INTO good VALUES (1, 'a')")
    rig.run()
    maria.require_equal("SELECT id, v FROM good")
    maria.server.run("CREATE TRIGGER acts BEFORE INSERT ON good FOR EACH ROW SET NEW.v = 'x'", database="test")
    with pytest.raises(TargetError, match="trigger acts acts on rows"):
        rig.prepare()


@gated
def test_long_keys_arrive_where_the_server_makes_tables_of_a_format_with_short_ones(maria: MariaDbRig) -> None:
    maria.make(["CREATE TABLE t (id text PRIMARY KEY, v text)"], [])
    maria.server.run("SET GLOBAL innodb_default_row_format = 'compact'")
    try:
        assert maria.propose() == []
        maria.server.run("ALTER TABLE t MODIFY id varchar(600) COLLATE utf8mb4_nopad_bin", database="test")
        maria.rig.prepare()
        maria.rig.write("INSERT INTO t VALUES (repeat('x', 600), 'v')")
        maria.rig.run()
    finally:
        maria.server.run("SET GLOBAL innodb_default_row_format = 'dynamic'")
    assert maria.rig.comparison().equal


@gated
def test_what_a_pipeline_has_at_the_target_goes_with_it(maria: MariaDbRig) -> None:
    maria.make(SOURCE[:1], TARGET[:1])
    maria.rig.prepare()
    assert maria.read("SELECT channel, seqno FROM parallel_apply.position") == [(str(one), "-1") for one in range(4)]
    removed = drop_pipeline("demo", maria.rig.source, maria.rig.target, log_url=maria.rig.config.log_url, with_log=True)
    assert "removed pipeline demo from the target" in removed.done
    assert maria.read("SHOW DATABASES LIKE 'parallel_apply'") == []


def _errors(maria: MariaDbRig) -> tuple[Finding, ...]:
    checked = check_pipeline(maria.rig.config, maria.rig.source, maria.rig.target)
    return errors(checked.findings)


def test_servers_of_our_own_share_no_directory_of_temporary_tables(maria: MariaDbRig) -> None:
    assert maria.read("SELECT @@tmpdir") == [(f"{maria.server.directory}.tmp",)]
