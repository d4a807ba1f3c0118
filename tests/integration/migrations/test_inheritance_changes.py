"""Tables that inherit from others than before: the run stops with what is to be run at the target, or it is told."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy, Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_TABLES = (
    "CREATE TABLE parent (id integer PRIMARY KEY, a text, b integer)",
    "CREATE TABLE other (id integer PRIMARY KEY, a text, b integer)",
    "CREATE TABLE child (c integer, PRIMARY KEY (id)) INHERITS (parent)",
)
_END = "ALTER TABLE child NO INHERIT parent"
_BEGIN = "ALTER TABLE child INHERIT parent"
_ROWS = ("INSERT INTO parent (id) VALUES (11)", "INSERT INTO child (id, c) VALUES (12, 12)")
CHANGES = {
    "renamed at the parent": (_END, "ALTER TABLE parent RENAME a TO x"),
    "dropped at the child": (_END, "ALTER TABLE child DROP b"),
    "passed on": (
        _END,
        "ALTER TABLE parent RENAME a TO x; ALTER TABLE parent ADD a text",
        "ALTER TABLE child ADD x text",
        _BEGIN,
    ),
    "moved": (_END, "ALTER TABLE child INHERIT other", "ALTER TABLE parent RENAME a TO x"),
    "two parents": (
        "ALTER TABLE child INHERIT other",
        "ALTER TABLE other ADD d integer DEFAULT 5; INSERT INTO other VALUES (9)",
    ),
    "dropped parent": (_END, "DROP TABLE parent"),
}
_OFTEN = {("dropped at the child", True)}


def begin(rig: Rig, *more: str) -> Rig:
    rig.both(*_TABLES, *more)
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1, 'x', 1)", "INSERT INTO child VALUES (2, 'y', 2, 2)")
    rig.run()
    return rig


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


@pytest.mark.parametrize(
    ("change", "is_recopied"),
    [
        pytest.param(change, is_recopied, marks=() if (change, is_recopied) in _OFTEN else pytest.mark.long)
        for change in CHANGES
        for is_recopied in (False, True)
    ],
)
def test_what_was_not_told_stops_the_run_and_its_hint_leads_on(rig: Rig, change: str, is_recopied: bool) -> None:
    rig = begin(rig)
    rig.write(*CHANGES[change], *_ROWS[change == "dropped parent" :])
    told = stopped(rig)
    assert re.search(r"public\.child (inherits from|does not inherit from) public\.(parent|other)( |,)", told), told
    first, command, last = told.partition("parallel-apply recopy")
    execute(rig.target_dsn, *statements(first))
    if is_recopied:
        name, *_ = re.findall(r"--table ([\w.]+)", command + last)
        recopy(rig, name)
    else:
        follow(rig.having(ddl=DdlPolicy.SKIP))
    follow(rig)
    execute(rig.target_dsn, *statements(last))
    assert_equal(rig)
    kept = "SELECT inhparent::regclass::text FROM pg_inherits WHERE inhrelid = 'child'::regclass ORDER BY 1"
    assert rig.rows(kept) == rig.rows(kept, side="source")


@gated
@pytest.mark.parametrize("link", [_END, "ALTER TABLE child INHERIT other"])
def test_what_was_told_is_followed(rig: Rig, link: str) -> None:
    rig = begin(rig)
    rig.transaction(link, rig.ddl(link.replace(" child", " public.child")))
    rig.write("ALTER TABLE parent RENAME a TO x" if link == _END else "ALTER TABLE other ADD d integer", *_ROWS)
    rig.write("INSERT INTO other (id) VALUES (13)")
    rig.run()
    assert_equal(rig)


@gated
def test_a_parent_that_nobody_follows_is_of_no_account(rig: Rig) -> None:
    rig = rig.having(tables=TablePatterns(include=("public.child",), exclude=()))
    rig = begin(rig)
    rig.write(_END, "ALTER TABLE child DROP b", *_ROWS)
    assert "inherit" not in stopped(rig)


@gated
def test_a_parent_that_is_left_out_leaves_its_children_in_the_publication(rig: Rig) -> None:
    rig = begin(rig)
    rig = rig.having(tables=replace(rig.config.tables, exclude=("public.parent",)))
    (drop,) = re.findall(r"Run (ALTER PUBLICATION .*?);", stopped(rig))
    rig.write(drop, *_ROWS)
    rig.run()
    assert rig.rows("SELECT id FROM ONLY parent") == [(1,)]
    assert_equal(rig)


def test_a_table_between_that_nobody_follows_is_looked_through(rig: Rig) -> None:
    rig = rig.having(tables=TablePatterns(include=("*.*",), exclude=("*.middle",)))
    middle = "CREATE TABLE middle () INHERITS (parent)", "CREATE TABLE grandchild (PRIMARY KEY (id)) INHERITS (middle)"
    rig = begin(rig, *middle)
    rig.write("ALTER TABLE middle NO INHERIT parent", "ALTER TABLE parent RENAME a TO x", *_ROWS)
    told = stopped(rig)
    assert "public.grandchild does not inherit from public.parent any more" in told
    assert statements(told) == ['ALTER TABLE "public"."middle" NO INHERIT "public"."parent"']


@gated
def test_one_side_alone_is_refused_where_a_pipeline_begins(rig: Rig) -> None:
    """Nothing of it is written before."""
    grandchild = "CREATE TABLE grandchild (PRIMARY KEY (id)) INHERITS (child)"
    rig.both(*_TABLES, grandchild, "CREATE TABLE alone (PRIMARY KEY (id)) INHERITS (other)")
    rig.write("ALTER TABLE child INHERIT other")
    execute(rig.target_dsn, "ALTER TABLE child NO INHERIT parent")
    rig.write("ALTER TABLE alone NO INHERIT other")
    rig = rig.having(start=Start.EQUAL)
    wanted = (
        "public.child inherits from public.other at the source and not at the target",
        "public.child inherits from public.parent at the source and not at the target",
        "public.alone inherits from public.other at the target and not at the source",
    )
    checked = check_pipeline(rig.config, rig.source, rig.target)
    told = [finding for finding in checked.findings if "inherits" in finding.what]
    assert [finding.what.partition(":")[0] for finding in told] == [*wanted]
    refused = stopped(rig)
    assert all(text in refused for text in wanted)
    assert rig.rows("SELECT FROM pg_replication_slots WHERE slot_name = 'parallel_apply_p'", side="source") == []
    assert rig.rows("SELECT to_regnamespace('parallel_apply')::text") == [(None,)]
    by_hand = rig.having(ddl=DdlPolicy.REFUSE)
    assert check_pipeline(by_hand.config, rig.source, rig.target).is_good
    execute(rig.target_dsn, *(command for finding in told for command in finding.fix))
    rig.prepare()
    rig.write("ALTER TABLE parent ADD e integer", "ALTER TABLE other ADD d integer DEFAULT 5", *_ROWS)
    rig.write(
        "INSERT INTO other (id) VALUES (1)",
        "INSERT INTO alone (id) VALUES (1)",
        "INSERT INTO grandchild (id) VALUES (1)",
    )
    rig.run()
    assert_equal(rig)


def test_one_side_alone_is_refused_before_rows_of_a_new_table_are_applied(rig: Rig) -> None:
    """Its children are altered with the parent later."""
    rig = begin(rig)
    install(rig.source_dsn)
    rig.write("CREATE TABLE late (PRIMARY KEY (id)) INHERITS (parent)")
    rig.run()
    rig.write("INSERT INTO late VALUES (3, 'z', 3)")
    assert "no such table" in stopped(rig)
    execute(rig.target_dsn, "CREATE TABLE late (id integer PRIMARY KEY, a text, b integer)")
    told = stopped(rig)
    assert "public.late inherits from public.parent at the source and not at the target" in told
    checked = check_pipeline(rig.config, rig.source, rig.target)
    (wanted,) = (finding for finding in checked.findings if "inherits" in finding.what)
    assert statements(told) == [*wanted.fix] == ['ALTER TABLE "public"."late" INHERIT "public"."parent"']
    assert check_pipeline(rig.having(ddl=DdlPolicy.REFUSE).config, rig.source, rig.target).is_good
    follow(rig)
    renamed, added = "ALTER TABLE parent RENAME b TO b_old", "ALTER TABLE parent ADD b bigint"
    rig.write(f"BEGIN; {renamed}; {ddl(renamed)}; {added}; {ddl(added)}; COMMIT")
    rig.run()
    rig.write("INSERT INTO late (id) VALUES (4)", *_ROWS)
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("is_one_run", [True, False])
@pytest.mark.parametrize(
    ("made", "altered"),
    [
        ("CREATE TABLE late (id integer PRIMARY KEY, a text, b integer)", "ALTER TABLE late INHERIT parent"),
        ("CREATE TABLE late (PRIMARY KEY (id)) INHERITS (parent)", "ALTER TABLE late NO INHERIT parent"),
    ],
)
def test_a_new_table_whose_inheritance_is_sent_before_its_rows_is_followed(
    rig: Rig, made: str, altered: str, is_one_run: bool
) -> None:
    rig = begin(rig)
    install(rig.source_dsn)
    rig.transaction(made, ddl(made))
    rig.run()
    rig.transaction(altered, ddl(altered))
    if not is_one_run:
        rig.run()
    rig.write("INSERT INTO late VALUES (3, 'z', 3)")
    rig.run()
    renamed, added = "ALTER TABLE parent RENAME b TO b_old", "ALTER TABLE parent ADD b bigint"
    rig.write(f"BEGIN; {renamed}; {ddl(renamed)}; {added}; {ddl(added)}; COMMIT")
    rig.run()
    rig.write("INSERT INTO late (id) VALUES (4)", *_ROWS)
    rig.run()
    assert_equal(rig)


def statements(hint: str) -> list[str]:
    """Those that a hint names."""
    found = re.findall(r"(ALTER TABLE .*?)(?:\)| at the target|\. |\.$)", hint.partition("Hint: ")[2] or hint)
    return [one for some in found for one in some.split("; ")]


def recopy(rig: Rig, name: str) -> None:
    schema, _, table = name.partition(".")
    for _ in range(3):
        try:
            recopy_tables(rig.config, rig.source, rig.target, [(schema, table)], report=lambda progress: None)
            return
        except FatalError as error:
            told = str(error)
        assert statements(told), told
        execute(rig.target_dsn, *statements(told))


def follow(rig: Rig) -> None:
    """Run until it is green, as the hints say."""
    for _ in range(4):
        if not (told := stopped(rig)):
            return
        assert statements(told), told
        execute(rig.target_dsn, *statements(told))


def stopped(rig: Rig) -> str:
    """Run it, and return what the red run says."""
    try:
        rig.run()
    except FatalError as error:
        return str(error)
    return ""
