"""Triggers of the target that write to followed tables while rows are applied: named, and their hints lead on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites
from tests.support.rig import Rig, execute
from tests.support.variants import gated


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


@dataclass(frozen=True, kw_only=True)
class Act:
    """A trigger `Guard` of the table `on`: what it does, when, for what, and to which table."""

    body: str
    kind: str = 'TRIGGER "Guard" AFTER INSERT OR UPDATE OR DELETE'
    each: str = "ROW"
    when: str = ""
    on: str = "t"
    changed: str = "public.t"
    changes: tuple[str, ...] = ("UPDATE t SET v = 'lower' WHERE id = 3",)


NEIGHBOUR = "UPDATE t SET v = v || '!' WHERE id = 1"
ACTS = {
    "its row": Act(body="UPDATE t SET v = upper(v) WHERE id = NEW.id AND v <> upper(v)"),
    "its row, at the end": Act(
        body="UPDATE t SET v = upper(v) WHERE id = NEW.id AND v <> upper(v)",
        kind='CONSTRAINT TRIGGER "Guard" AFTER INSERT OR UPDATE',
        when="DEFERRABLE INITIALLY DEFERRED",
    ),
    "a neighbour": Act(body=NEIGHBOUR),
    "a neighbour, for each statement": Act(body=NEIGHBOUR, each="STATEMENT"),
    "another followed table": Act(body="INSERT INTO other VALUES (7)", changed="public.other"),
    "another followed table, from a partition": Act(
        body="DELETE FROM other",
        on="whole_1",
        changed="public.other",
        changes=("UPDATE whole SET v = 'x' WHERE id = 3",),
    ),
    "what was truncated": Act(
        body="INSERT INTO t VALUES (70, 'new')",
        kind='TRIGGER "Guard" AFTER TRUNCATE',
        each="STATEMENT",
        changes=("TRUNCATE t",),
    ),
}  # fmt: skip
ACTS_IN_SHORT = {("another followed table", "merge")}


def test_another_file_that_somebody_else_gives_a_table_meanwhile_is_no_write(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As VACUUM FULL does it."""
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE other (id int PRIMARY KEY)")
    rig.prepare()
    execute(
        rig.target_dsn,
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER nothing AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()",
        "ALTER TABLE t ENABLE ALWAYS TRIGGER nothing",
    )
    rig.write("INSERT INTO other VALUES (1)")
    rig.run()
    begin = SideWrites.begin

    def begun(beside: SideWrites, tables: Sequence[TargetTable]) -> None:
        begin(beside, tables)
        execute(rig.target_dsn, "VACUUM FULL other")

    monkeypatch.setattr(SideWrites, "begin", begun)
    rig.write("INSERT INTO t VALUES (1, 'a')")
    rig.run()
    assert rig.comparison().equal


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(*case, id=", ".join(case), marks=() if case in ACTS_IN_SHORT else pytest.mark.long)
        for case in product(ACTS, ("merge", "replay"))
    ],
)
def test_a_trigger_that_writes_to_followed_tables_is_named_and_its_hint_leads_on(rig: Rig, name: str, way: str) -> None:
    act = ACTS[name]
    rig.both(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE third (id int PRIMARY KEY)",
        "CREATE TABLE whole (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE whole_1 PARTITION OF whole DEFAULT",
    )
    rig.prepare()
    rig.write(
        "INSERT INTO t SELECT n, 'old' FROM generate_series(1, 5) n",
        "INSERT INTO whole SELECT n, 'old' FROM generate_series(1, 5) n",
        "INSERT INTO other VALUES (1)",
    )
    rig.run()
    execute(
        rig.target_dsn,
        "CREATE SCHEMA side",
        "CREATE TABLE side.seen (id int)",
        "CREATE TABLE side.acts (id int)",
        "CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
        "INSERT INTO side.seen VALUES (1); IF EXISTS (SELECT FROM side.acts) AND pg_trigger_depth() = 1 THEN "
        f"{act.body}; END IF; RETURN NULL; END$$",
        f"CREATE {act.kind} ON {act.on} {act.when} FOR EACH {act.each} EXECUTE FUNCTION act()",
        f'ALTER TABLE {act.on} ENABLE ALWAYS TRIGGER "Guard"',
    )
    changes = (*(["TRUNCATE third"] * (way == "replay")), *act.changes)
    rig.transaction(*changes)
    rig.run()
    assert rig.comparison().equal
    assert rig.rows("SELECT DISTINCT id FROM side.seen") == [(1,)]
    execute(rig.target_dsn, "INSERT INTO side.acts VALUES (1)")
    rig.transaction(*(change.replace("'x'", "'y'").replace("'lower'", "'other'") for change in changes))
    with pytest.raises(FatalError) as caught:
        rig.run()
    message = str(caught.value)
    for word in ("trigger Guard", "changes what is applied", f"table {act.changed}"):
        assert word in message
    execute(rig.target_dsn, message.split("Hint: ")[1].split("Run ")[1].split(";", maxsplit=1)[0])
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_trigger_that_writes_to_a_table_of_another_pipeline_is_named_and_its_hint_leads_on(
    rig: Rig, tmp_path: Path
) -> None:
    """Its rows would be there twice: the other pipeline brings them, too."""
    other = rig.having(pipeline="q", log_url=str(tmp_path / "other"), tables=TablePatterns(include=("public.seen",)))
    rig = rig.having(tables=TablePatterns(include=("public.t",)))
    rig.both(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE seen (id int)",
        "CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (NEW.id); "
        "RETURN NULL; END'",
        "CREATE TRIGGER act AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION act()",
    )
    execute(rig.target_dsn, "ALTER TABLE t ENABLE ALWAYS TRIGGER act")
    rig.run()
    other.run()
    rig.write("INSERT INTO t VALUES (1)")
    told = "the trigger act of t changes what is applied: it writes to public.seen, whose rows pipeline q brings"
    with pytest.raises(FatalError, match=told) as caught:
        rig.run()
    assert "Or, if that pipeline is no more: `parallel-apply drop --pipeline q`" in str(caught.value)
    execute(rig.target_dsn, str(caught.value).split("Hint: ")[1].split("Run ")[1].split(";", maxsplit=1)[0])
    for pipeline in (rig, other):
        pipeline.run()
        assert pipeline.comparison().equal


@gated
@pytest.mark.parametrize(
    "is_noted", [pytest.param(False, id="before its first run"), pytest.param(True, id="later", marks=pytest.mark.long)]
)
def test_a_trigger_that_writes_to_a_table_that_is_renamed_later_in_the_log_is_named(rig: Rig, is_noted: bool) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int)")
    rig.prepare()
    if is_noted:
        rig.write("INSERT INTO t VALUES (7)")
        rig.run()
    _act_on("u", rig)
    rig.write("INSERT INTO t VALUES (1)", "ALTER TABLE u RENAME TO u2", "INSERT INTO u2 VALUES (2)")
    with pytest.raises(FatalError, match=r"the trigger act of t changes what is applied: it writes to public\.u\b"):
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE t ENABLE TRIGGER act")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_trigger_that_writes_to_a_table_that_has_had_no_row_yet_is_named(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id int PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    rig.run()
    rig.both("CREATE TABLE u (id int)")
    _act_on("u", rig)
    rig.write("INSERT INTO t VALUES (2)")
    with pytest.raises(FatalError, match=r"the trigger act of t changes what is applied: it writes to public\.u\b"):
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE t ENABLE TRIGGER act")
    rig.write("INSERT INTO u VALUES (3)")
    rig.run()
    assert rig.comparison().equal


@pytest.mark.long
def test_a_trigger_that_writes_to_a_table_that_somebody_renames_meanwhile_is_named(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.both("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int)")
    rig.prepare()
    rig.write("INSERT INTO u VALUES (1)")
    rig.run()
    _act_on("u2", rig)
    rig.write("INSERT INTO t VALUES (1)")
    begin = SideWrites.begin

    def begun(beside: SideWrites, tables: Sequence[TargetTable]) -> None:
        execute(rig.target_dsn, "ALTER TABLE IF EXISTS u RENAME TO u2")
        begin(beside, tables)

    monkeypatch.setattr(SideWrites, "begin", begun)
    with pytest.raises(FatalError, match=r"the trigger act of t changes what is applied: it writes to public\.u2"):
        rig.run()


def _act_on(table: str, rig: Rig) -> None:
    """A trigger of t that writes the ids of new rows to that table."""
    execute(
        rig.target_dsn,
        f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO {table} VALUES (NEW.id); "
        "RETURN NULL; END'",
        "CREATE TRIGGER act AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION act()",
        "ALTER TABLE t ENABLE ALWAYS TRIGGER act",
    )
