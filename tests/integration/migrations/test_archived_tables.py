"""Tables that are renamed, and whose names others bear from then on: archives and their successors."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.copy.postgres.recopy import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.migrations.renaming import assert_equal, forget, rig_of_three_tables, write  # noqa: F401  # a fixture
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute
from tests.support.variants import gated

ARCHIVE = ("ALTER TABLE public.a RENAME TO a_old", "CREATE TABLE public.a (LIKE public.a_old INCLUDING ALL)")


@gated
@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("with_rows", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_archived_table_is_known_by_what_messages_made_of_it(rig: Rig, together: bool, with_rows: bool) -> None:
    """The old name and the new one are both there then, and the columns do not tell the two tables apart."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.run()
    rows = ["INSERT INTO public.a (id, v) VALUES (1, 'new')"] if with_rows else []
    statements = [*(f"{text}; {ddl(text)}" for text in ARCHIVE), *rows]
    if together:
        rig.transaction(*statements)
    else:
        rig.write(*(f"BEGIN; {statement}; COMMIT" for statement in statements))
    if with_rows:
        with pytest.raises(FatalError, match=r"Leave public\.a out with an exclude pattern until a run has followed"):
            rig.run()
        rig.having(tables=TablePatterns(include=("public.*",), exclude=("public.a",))).run()
        with pytest.raises(FatalError, match=r"Run `parallel-apply recopy --pipeline p --table public\.a`,"):
            rig.run()
        recopy_tables(rig.config, rig.source, rig.target, [("public", "a")], report=lambda progress: None)
    rig.run()
    rig.write("UPDATE public.a_old SET v = 'archived' WHERE id % 4 = 0", "INSERT INTO public.a (id, v) VALUES (2, '')")
    rig.run()
    assert_equal(rig)
    assert rig.rows("SELECT count(*) FROM public.a_old WHERE v = 'archived'") != [(0,)]


@gated
def test_a_table_that_got_an_archived_ones_name_before_the_target_followed_is_not_taken_for_it(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    rig.write(*ARCHIVE)
    rig.capture("captured")
    rig.write("INSERT INTO public.a (id, v) VALUES (1, 'new')")
    with pytest.raises(FatalError, match=r"the target has no such table .*CREATE TABLE"):
        rig.run()
    execute(rig.target_dsn, ARCHIVE[1])
    rig.run()
    assert_equal(rig)


@gated
def test_names_that_messages_exchanged_are_not_exchanged_again_where_columns_do_not_tell(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.run()
    for text in (f"ALTER TABLE public.{old} RENAME TO {new}" for old, new in (("a", "x"), ("b", "a"), ("x", "b"))):
        rig.write(f"BEGIN; {text}; {ddl(text)}; COMMIT")
    write(rig, first=200)
    rig.run()
    assert_equal(rig)
    rig.write("ALTER TABLE public.a RENAME TO z")
    write(rig, first=300)
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("is_known", [True, False])
def test_an_archive_that_was_made_by_hand_is_known_by_its_table_or_as_the_hint_says(rig: Rig, is_known: bool) -> None:
    rig.run()
    rig.both(*ARCHIVE)
    rig.write("UPDATE public.a_old SET v = 'archived' WHERE id % 4 = 0")
    if not is_known:
        forget(rig)
        with pytest.raises(
            FatalError, match=r"a_old has rows, and public\.a may have been made since: if so, run once with ddl=skip"
        ):
            rig.run()
        rig = rig.having(ddl=DdlPolicy.SKIP)
    rig.run()
    rig.write("INSERT INTO public.a (id, v) VALUES (2, '')", "DELETE FROM public.a_old WHERE id % 4 = 1")
    rig.run()
    assert_equal(rig)


@gated
def test_a_table_and_its_successor_that_are_both_empty_at_the_target_may_be_either(rig: Rig) -> None:
    rig.write("TRUNCATE a")
    rig.run()
    rig.transaction("ALTER TABLE a RENAME TO a_old", "INSERT INTO a_old VALUES (900)", "CREATE TABLE a (LIKE a_old)")
    execute(rig.target_dsn, "ALTER TABLE a RENAME TO a_old", "CREATE TABLE a (LIKE a_old)")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("key", ["", pytest.param(", PRIMARY KEY (id)", marks=pytest.mark.long)])
def test_an_archived_table_whose_successor_is_followed_in_the_same_run_keeps_its_rows(rig: Rig, key: str) -> None:
    """Following the new table writes the publication's comment once more, by which a message of ours counts."""
    rig.both(f"CREATE TABLE kept (id integer{key})")
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    rig.write("INSERT INTO kept VALUES (1), (2)")
    rig.run()
    rig.write("ALTER TABLE kept RENAME TO kept_old", f"CREATE TABLE kept (id integer{key})")
    rig.write("INSERT INTO b (id) VALUES (900)")
    rig.run()
    rig.write("INSERT INTO kept VALUES (3)")
    with pytest.raises(FatalError, match=r"no such table.*public\.kept|public\.kept is missing"):
        rig.run()
    execute(rig.target_dsn, f"CREATE TABLE kept (id integer{key})")
    rig.run()
    assert rig.rows("SELECT * FROM kept_old ORDER BY 1") == [(1,), (2,)]
    assert_equal(rig)


@gated
def test_a_rename_that_was_told_before_another_one_was_is_told_again(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    rig.write("ALTER TABLE a RENAME TO y")
    rig.prepare()
    rig.write("ALTER TABLE b RENAME TO z")
    rig.prepare()
    rig.run()
    assert rig.rows("SELECT count(*) FROM y") != [(0,)]
    assert_equal(rig)


@gated
def test_a_new_partitioned_table_is_followed_in_the_run_that_tells_another_one_s_name(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    rig.write(
        "ALTER TABLE a RENAME TO a_old",
        "CREATE TABLE p (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )
    execute(rig.target_dsn, "CREATE TABLE p (id integer PRIMARY KEY)")
    rig.run()
    rig.write("INSERT INTO p VALUES (1)")
    rig.run()
    assert rig.rows("SELECT count(*) FROM a_old") != [(0,)]
    assert_equal(rig)


@gated
def test_a_copy_that_takes_a_tables_name_is_made_under_the_name_that_its_rows_came_under(rig: Rig) -> None:
    """As tools change a table that stays online; a run has seen the copy while it was empty."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    rig.write("CREATE TABLE public.a_new (LIKE public.a INCLUDING ALL)")
    rig.run()
    rig.write("INSERT INTO public.a_new SELECT * FROM public.a")
    rig.transaction("ALTER TABLE public.a RENAME TO a_old", "ALTER TABLE public.a_new RENAME TO a")
    rig.write("UPDATE public.a SET v = 'later' WHERE id % 4 = 0")
    with pytest.raises(FatalError, match=r"the target has no such table .*table public\.a_new.*public\.a now") as told:
        rig.run()
    (make,) = re.findall(r"If the target never had it, run (CREATE TABLE .*?) there;", str(told.value))
    execute(rig.target_dsn, make)
    rig.run()
    assert_equal(rig)
    assert rig.rows("SELECT count(*) FROM public.a WHERE v = 'later'") != [(0,)]
