"""Triggers and rules of the target that turn applied rows away, and types that would cut them: never in silence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

OTHER = "CREATE TABLE other (id int PRIMARY KEY)"
REPLAYED = "TRUNCATE other"
"""Makes a small transaction one that is replayed change by change."""
SWALLOW = "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=2,
        lanes=1,
        tables=TablePatterns(include=("public.*",)),
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


@pytest.fixture
def plain(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as made:
        yield made


def refused(rig: Rig, *says: str) -> str:
    """A run is red and tells all of it."""
    with pytest.raises(FatalError) as caught:
        rig.run()
    for word in (*says, "Hint: "):
        assert word in str(caught.value)
    return str(caught.value)


TABLES = {
    "a key": "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "no key": "CREATE TABLE t (id int, v text)",
    "no identity": "CREATE TABLE t (id int, v text)",
}
CHANGES = {
    "INSERT": ["INSERT INTO t VALUES (8, 'new'), (9, 'new')", "DELETE FROM t WHERE id = 1"],
    "UPDATE": ["UPDATE t SET v = 'changed' WHERE id = 2"],
    "DELETE": ["DELETE FROM t WHERE id > 3"],
}


IN_SHORT = {("no key", "INSERT", "merge"), ("no identity", "INSERT", "replay")}


@gated
@pytest.mark.parametrize(
    ("kind", "event", "way"),
    [
        pytest.param(*case, id=", ".join(case), marks=() if case in IN_SHORT else pytest.mark.long)
        for case in product(TABLES, CHANGES, ("merge", "replay"))
        if case[0] != "no identity" or case[1] == "INSERT"
    ],
)
def test_a_trigger_that_turns_rows_away_is_named_and_its_hint_leads_on(
    rig: Rig, kind: str, event: str, way: str
) -> None:
    rig.both(TABLES[kind], OTHER)
    if kind == "no key":
        rig.both("ALTER TABLE t REPLICA IDENTITY FULL")
    rig.prepare()
    rig.write("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 5) n")
    rig.run()
    acts_on = "INSERT OR UPDATE OR DELETE" if (kind, event) == ("no key", "UPDATE") else event
    execute(
        rig.target_dsn,
        SWALLOW,
        f'CREATE TRIGGER "Guard" BEFORE {acts_on} ON t FOR EACH ROW EXECUTE FUNCTION swallow()',
        'ALTER TABLE t ENABLE ALWAYS TRIGGER "Guard"',
    )
    changes = CHANGES[event][:1] if kind == "no identity" else CHANGES[event]
    rig.transaction(*([REPLAYED] * (way == "replay")), *changes)
    told = refused(rig, "trigger Guard", "public.t")
    hint = told.split("Hint: ")[1]
    execute(rig.target_dsn, hint.split("Run ")[1].split(";")[0])
    rig.run()
    assert rig.comparison().equal


NARROW = {
    "character varying(3)": ("character varying(6)", "abc", "abcdef"),
    "bit(3)": ("bit varying(6)", "101", "101101"),
    "bit varying(3)": ("bit varying(6)", "101", "101101"),
    "character varying(3)[]": ("character varying(6)[]", "{abc}", "{abcdef}"),
}


@pytest.mark.parametrize(
    "narrow", [pytest.param(one, marks=pytest.mark.long if index else ()) for index, one in enumerate(NARROW)]
)
def test_a_replay_never_cuts_a_value_to_the_targets_narrower_type(rig: Rig, narrow: str) -> None:
    """A column that only insertions fill makes an update a deletion and an insertion of the row's final form."""
    wide, short, long = NARROW[narrow]
    execute(rig.source_dsn, f"CREATE TABLE t (id int PRIMARY KEY, n int, v {wide})")
    execute(rig.target_dsn, f"CREATE TABLE t (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v {narrow})")
    rig.both(OTHER)
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, 1, '{short}')")
    rig.run()
    rig.transaction(REPLAYED, f"UPDATE t SET n = 7, v = '{long}'")
    refused(rig, "public.t", "type")
    execute(rig.target_dsn, f"ALTER TABLE t ALTER v TYPE {wide}")
    rig.run()
    assert rig.rows("SELECT n, v::text FROM t") == [(7, long)]


@gated
def test_rows_without_a_key_that_the_targets_types_print_otherwise_are_refused_on_every_way(rig: Rig) -> None:
    execute(rig.source_dsn, "CREATE TABLE bag (a char(2), b numeric(5, 1))", "ALTER TABLE bag REPLICA IDENTITY FULL")
    execute(rig.target_dsn, "CREATE TABLE bag (a char(4), b numeric(6, 3))")
    rig.both(OTHER)
    rig.prepare()
    rig.write("INSERT INTO bag VALUES ('a', 1.5), ('b', 2.5), ('', NULL)")
    told = refused(rig, "public.bag", "column a", "character(4)")
    execute(rig.target_dsn, told.split("Hint: Run ")[1].split(" at the target;")[0])
    told = refused(rig, "public.bag", "column b", "numeric(6,3)")
    execute(rig.target_dsn, told.split("Hint: Run ")[1].split(" at the target;")[0])
    rig.run()
    execute(rig.target_dsn, "ALTER TABLE bag ALTER a TYPE char(4), ALTER b TYPE numeric(6, 3)")
    rig.transaction(REPLAYED, "DELETE FROM bag WHERE a = 'a' OR b IS NULL", "UPDATE bag SET b = 3.5")
    refused(rig, "public.bag", "column a", "character(4)")
    execute(rig.target_dsn, "ALTER TABLE bag ALTER a TYPE char(2), ALTER b TYPE numeric(5, 1)")
    rig.run()
    assert rig.comparison().equal


REWRITE = "CREATE FUNCTION rewrite() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := upper(NEW.v); RETURN NEW; END'"
AFTERWARDS = """CREATE FUNCTION rewrite() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN UPDATE t SET v = upper(v) WHERE id = NEW.id AND v <> upper(v); RETURN NULL; END'"""


@gated
@pytest.mark.parametrize(
    ("kind", "way", "time"),
    [
        ("a key", "merge", "BEFORE"),
        pytest.param("a key", "merge", "AFTER", marks=pytest.mark.long),
        pytest.param("a key", "replay", "BEFORE", marks=pytest.mark.long),
        pytest.param("no key", "merge", "BEFORE", marks=GATED),
        pytest.param("no key", "merge", "AFTER", marks=pytest.mark.long),
        pytest.param("no key", "replay", "BEFORE", marks=pytest.mark.long),
    ],
)
def test_a_trigger_that_changes_what_is_applied_is_named_and_its_hint_leads_on(
    rig: Rig, kind: str, way: str, time: str
) -> None:
    rig.both(TABLES[kind], OTHER)
    if kind == "no key":
        rig.both("ALTER TABLE t REPLICA IDENTITY FULL")
    rig.prepare()
    rig.write("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 5) n")
    rig.run()
    execute(
        rig.target_dsn,
        REWRITE if time == "BEFORE" else AFTERWARDS,
        f'CREATE TRIGGER "Guard" {time} INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION rewrite()',
        'ALTER TABLE t ENABLE ALWAYS TRIGGER "Guard"',
    )
    rig.write("INSERT INTO t VALUES (6, 'UPPER')", "UPDATE t SET v = 'ALSO' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    rig.run()
    rig.transaction(*([REPLAYED] * (way == "replay")), "UPDATE t SET v = 'lower' WHERE id = 3")
    told = refused(rig, "trigger Guard", "public.t", "changes what is applied")
    execute(rig.target_dsn, told.split("Hint: ")[1].split("Run ")[1].split(";")[0])
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("way", [pytest.param("merge", marks=pytest.mark.long), "replay"])
def test_a_trigger_that_changes_what_was_not_sent_is_named(rig: Rig, way: str) -> None:
    """A long value that an update leaves alone does not come with it."""
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text, long text)", "ALTER TABLE t ALTER long SET STORAGE EXTERNAL")
    rig.both(OTHER)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a', repeat('long', 3000)), (2, 'a', 'short')")
    rig.run()
    execute(
        rig.target_dsn,
        "CREATE FUNCTION rewrite() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.long := NEW.v; RETURN NEW; END'",
        'CREATE TRIGGER "Guard" BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION rewrite()',
    )
    rig.transaction(*([REPLAYED] * (way == "replay")), "UPDATE t SET v = 'b' WHERE id = 1")
    rig.run()
    execute(rig.target_dsn, 'ALTER TABLE t ENABLE ALWAYS TRIGGER "Guard"')
    rig.transaction(*([REPLAYED] * (way == "replay")), "UPDATE t SET v = 'c' WHERE id = 1")
    told = refused(rig, "trigger Guard", "public.t", "changes what is applied", "id=1")
    execute(rig.target_dsn, told.split("Hint: ")[1].split("Run ")[1].split(";")[0])
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("way", ["merge", pytest.param("replay", marks=pytest.mark.long)])
def test_blanks_at_the_end_are_never_cut_to_the_targets_narrower_type(rig: Rig, way: str) -> None:
    execute(rig.source_dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    execute(rig.target_dsn, "CREATE TABLE t (id int PRIMARY KEY, v varchar(3))")
    rig.both(OTHER)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'äöü'), (2, NULL)")
    rig.run()
    rig.transaction(
        *([REPLAYED] * (way == "replay")), "UPDATE t SET v = 'äöü  ' WHERE id = 1", "DELETE FROM t WHERE id = 2"
    )
    refused(rig, "public.t", "column v", "too long", 'ALTER COLUMN "v" TYPE text')
    execute(rig.target_dsn, "ALTER TABLE t ALTER v TYPE text")
    rig.run()
    assert rig.rows("SELECT v FROM t") == [("äöü  ",)]


@gated
@pytest.mark.parametrize("way", ["merge", pytest.param("replay", marks=pytest.mark.long)])
def test_a_trigger_that_truncates_a_followed_table_is_named(rig: Rig, way: str) -> None:
    """The server counts no rows that go with a table's file."""
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE beside (id int PRIMARY KEY)", OTHER)
    rig.prepare()
    rig.write("INSERT INTO beside SELECT generate_series(1, 3)")
    rig.run()
    execute(
        rig.target_dsn,
        "CREATE FUNCTION clear() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN TRUNCATE beside; RETURN NULL; END$$",
        'CREATE TRIGGER "Clear" AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION clear()',
        'ALTER TABLE t ENABLE ALWAYS TRIGGER "Clear"',
    )
    rig.transaction(*([REPLAYED] * (way == "replay")), "INSERT INTO t VALUES (1, 'a')")
    told = refused(rig, "trigger Clear", "public.beside", "changes what is applied")
    execute(rig.target_dsn, told.split("Hint: ")[1].split("Run ")[1].split(";")[0])
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_rule_that_adds_rows_elsewhere_is_none_of_ours(rig: Rig) -> None:
    rig.both(TABLES["no key"], "ALTER TABLE t REPLICA IDENTITY FULL")
    rig.prepare()
    execute(
        rig.target_dsn,
        "CREATE SCHEMA side",
        "CREATE TABLE side.seen (LIKE t)",
        "CREATE RULE r AS ON INSERT TO t DO ALSO INSERT INTO side.seen VALUES (NEW.*)",
        "ALTER TABLE t ENABLE ALWAYS RULE r",
    )
    rig.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "DELETE FROM t WHERE id = 1")
    rig.run()
    assert rig.comparison().equal
    execute(
        rig.target_dsn, "CREATE OR REPLACE RULE r AS ON INSERT TO t DO INSTEAD INSERT INTO side.seen VALUES (NEW.*)"
    )
    execute(rig.target_dsn, "ALTER TABLE t ENABLE ALWAYS RULE r")
    rig.write("INSERT INTO t VALUES (3, 'c')")
    told = refused(rig, "rule r", "changes what is applied")
    execute(rig.target_dsn, told.split("Hint: ")[1].split("Run ")[1].split(";")[0])
    rig.run()
    assert rig.comparison().equal


@gated
def test_rows_that_a_policy_hides_are_no_missing_rows(plain: PlainRig) -> None:
    rig = plain.having(ddl=DdlPolicy.APPLY)
    plain.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    rig.run()
    rig.write("INSERT INTO t SELECT i, 'old' FROM generate_series(1, 5) i")
    rig.run()
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    execute(owner, "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    rig.write("UPDATE t SET v = 'new'")
    told = refused(rig, "row-level security", "BYPASSRLS")
    assert "compare" not in told
    found = re.search(r"Run (ALTER ROLE .*? BYPASSRLS) at the target", told)
    assert found is not None, told
    execute(owner, found[1])
    rig.run()
    assert rig.rows("SELECT DISTINCT v FROM t") == [("new",)]


def test_what_acts_on_applied_rows_is_told_while_columns_may_change(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    rig.run()
    execute(rig.target_dsn, "CREATE RULE swallow AS ON INSERT TO t DO INSTEAD NOTHING")
    execute(rig.target_dsn, "ALTER TABLE t ENABLE ALWAYS RULE swallow")
    found = check_pipeline(rig.config, rig.source, rig.target).findings
    assert ('ALTER TABLE "public"."t" ENABLE RULE "swallow"',) in [finding.fix for finding in found]
