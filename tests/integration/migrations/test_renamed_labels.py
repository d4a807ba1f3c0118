"""A label of an enum that is renamed at the source changes what older rows print, and no row is sent of it."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.capture.adoption import vouch_for
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import gated

_RENAME = "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"
_SWAP = tuple(
    f"ALTER TYPE mood RENAME VALUE '{old}' TO '{new}'" for old, new in (("sad", "x"), ("ok", "sad"), ("x", "ok"))
)


@pytest.fixture
def rig(rig: Rig) -> Rig:
    rig.both(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN state AS mood",
        "CREATE TYPE pair AS (a integer, b state)",
        "CREATE TABLE t (id integer PRIMARY KEY, m mood)",
        "CREATE TABLE u (id integer PRIMARY KEY, ms pair[])",
        "CREATE TABLE v (id integer PRIMARY KEY)",
    )
    rig.prepare()
    rig.write(
        "INSERT INTO t VALUES (1, 'sad'), (2, 'ok'), (3, 'ok')",
        "INSERT INTO u VALUES (1, ARRAY[ROW(1, 'sad')]::pair[])",
        "INSERT INTO v VALUES (1)",
    )
    rig.run()
    return rig


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
@pytest.mark.parametrize("policy", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=pytest.mark.long)])
def test_it_stops_the_run_until_the_target_has_it_too(rig: Rig, policy: DdlPolicy) -> None:
    rig = rig.having(ddl=policy)
    rig.write(_RENAME, "DELETE FROM t WHERE id = 3", "INSERT INTO v VALUES (2)")
    with pytest.raises(
        FatalError, match=r"labels of an enum in public\.t .*: sad.*public\.u(?s:.*)parallel-apply vouch"
    ) as refused:
        rig.run()
    assert "public.v" not in str(refused.value)
    execute(rig.target_dsn, _RENAME)
    rig.having(ddl=DdlPolicy.SKIP).run()
    rig.write("UPDATE t SET m = 'blue' WHERE id = 2")
    rig.run()
    assert_equal(rig)


@gated
def test_tables_that_are_copied_anew_have_it(rig: Rig) -> None:
    rig.write(_RENAME)
    execute(rig.target_dsn, _RENAME)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t"), ("public", "u")], report=lambda progress: None)
    rig.write("UPDATE t SET m = 'blue' WHERE id = 2")
    rig.run()
    assert_equal(rig)


@gated
def test_a_label_that_was_added_before_its_rename_was_sent_is_copied_as_the_hint_says(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.transaction(_RENAME, "INSERT INTO t VALUES (4, 'blue')", ddl(_RENAME))
    with pytest.raises(FatalError, match=r"ADD VALUE 'blue'"):
        rig.run()
    execute(rig.target_dsn, "ALTER TYPE mood ADD VALUE 'blue'")
    with pytest.raises(FatalError, match=r"both labels.*`parallel-apply recopy --pipeline p --table") as told:
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t"), ("public", "u")], report=lambda progress: None)
    skip_as_the_hint_says(rig, told.value)
    assert_equal(rig)


@gated
def test_rows_that_have_a_label_which_the_target_has_under_a_newer_name_are_copied_anew(rig: Rig) -> None:
    rig.write("INSERT INTO t VALUES (4, 'sad')", _RENAME)
    execute(rig.target_dsn, _RENAME)
    vouch_for(rig.source, rig.config, [("public", "t"), ("public", "u")])
    with pytest.raises(FatalError, match=r"do neither: .*recopy --pipeline p --table public\.t`"):
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.run()
    assert_equal(rig)


@gated
def test_it_is_followed_where_it_is_sent(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.transaction(_RENAME, ddl(_RENAME), "DELETE FROM t WHERE id = 3")
    rig.run()
    assert_equal(rig)


@gated
def test_labels_that_were_exchanged_while_rows_were_written_stop_the_run_though_they_have_their_names_again(
    rig: Rig,
) -> None:
    rig.write(*_SWAP, "INSERT INTO t VALUES (4, 'sad')", *_SWAP, "INSERT INTO v VALUES (2)")
    with pytest.raises(FatalError, match=r"labels of an enum in public\.t .*: sad, ok(?s:.*)recopy") as refused:
        rig.run()
    assert "public.v" not in str(refused.value)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t"), ("public", "u")], report=lambda progress: None)
    rig.write("INSERT INTO t VALUES (5, 'ok')")
    rig.run()
    assert_equal(rig)


@pytest.mark.long
@pytest.mark.parametrize("is_told_whole", [True, False])
def test_labels_that_have_their_names_again_are_followed_where_each_time_was_sent(
    rig: Rig, is_told_whole: bool
) -> None:
    install(rig.source_dsn)
    told = [statement for one in _SWAP for statement in (one, ddl(one))]
    rig.transaction(*(told if is_told_whole else _SWAP), "INSERT INTO t VALUES (4, 'sad')")
    rig.transaction(*told)
    if is_told_whole:
        rig.run()
        assert_equal(rig)
    else:
        with pytest.raises(FatalError, match=r"labels of an enum in public\.t"):
            rig.run()


def test_a_new_label_changes_nothing(rig: Rig) -> None:
    rig.both("ALTER TYPE mood ADD VALUE 'glad' BEFORE 'sad'")
    rig.write("UPDATE t SET m = 'glad' WHERE id = 2")
    rig.run()
    assert_equal(rig)
