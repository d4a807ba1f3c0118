"""Tables renamed at the source while a pipeline runs: told by their oids, and the target's follow."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.copy.postgres.recopy import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.migrations.renaming import assert_equal, forget, rig_of_three_tables, write  # noqa: F401  # a fixture
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import GATED, gated

RENAMES = {
    "one": ["ALTER TABLE a RENAME TO z"],
    "a swap": ["BEGIN; ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b; COMMIT"],
    "in a circle": [
        "BEGIN; ALTER TABLE a RENAME TO x; ALTER TABLE c RENAME TO a; ALTER TABLE b RENAME TO c; "
        "ALTER TABLE x RENAME TO b; COMMIT"
    ],
    "one behind the other": ["ALTER TABLE a RENAME TO z", "ALTER TABLE b RENAME TO a", "ALTER TABLE c RENAME TO b"],
    "a successor": ["BEGIN; ALTER TABLE a RENAME TO z; ALTER TABLE b RENAME TO a; COMMIT"],
    "a schema": [
        "CREATE SCHEMA s", "ALTER TABLE a SET SCHEMA s", "ALTER TABLE b SET SCHEMA s", "ALTER SCHEMA s RENAME TO q",
    ],
    "there and back": ["ALTER TABLE a RENAME TO z", "INSERT INTO z VALUES (900)", "ALTER TABLE z RENAME TO a"],
}  # fmt: skip


@gated
@pytest.mark.parametrize(
    ("name", "free"), [pytest.param("a_old", "a_old_in_the_way", marks=GATED), ("表" * 21, "表" * 13 + "_in_the_way")]
)
def test_a_table_in_the_way_at_the_target_is_named_and_what_is_printed_leads_on(rig: Rig, name: str, free: str) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    execute(rig.target_dsn, f"CREATE TABLE {name} (other text)", f"INSERT INTO {name} VALUES ('kept')")
    rig.write(f"ALTER TABLE a RENAME TO {name}", f"UPDATE {name} SET v = 'archived' WHERE id = 1")
    with pytest.raises(FatalError, match=rf"has other tables of these names: public\.{name}") as caught:
        rig.run()
    printed = str(caught.value).partition("at the target (")[2].partition("), then")[0]
    execute(rig.target_dsn, *printed.split("; "))
    rig.run()
    assert rig.rows(f"SELECT other FROM {free}") == [("kept",)]
    assert_equal(rig)


@gated
def test_a_table_that_the_target_has_lost_is_copied_under_its_new_name(rig: Rig) -> None:
    rig.run()
    execute(rig.target_dsn, "DROP TABLE a")
    rig.write("ALTER TABLE a RENAME TO z", "UPDATE z SET v = 'new' WHERE id = 1")
    with pytest.raises(FatalError, match=r"lacks public\.a.*Hint: What the target lacks .*recopy .* public\.z`"):
        rig.run()
    with pytest.raises(FatalError, match=r"Run CREATE TABLE") as refused:
        recopy_tables(rig.config, rig.source, rig.target, [("public", "z")], report=lambda progress: None)
    made = re.search(r"Run (CREATE TABLE .*?\)\))", str(refused.value))
    assert made is not None, refused.value
    execute(rig.target_dsn, made[1])
    recopy_tables(rig.config, rig.source, rig.target, [("public", "z")], report=lambda progress: None)
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize(
    ("case", "with_rows"),
    [
        ("there and back", False),
        *(
            pytest.param(case, with_rows, marks=pytest.mark.long)
            for case in RENAMES
            for with_rows in (True, False)
            if (case, with_rows) != ("there and back", False)
        ),
    ],
)
def test_ddl_apply_follows_names(rig: Rig, case: str, with_rows: bool) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.write(*RENAMES[case])
    if with_rows:
        write(rig, first=100)
    rig.run()
    assert_equal(rig)
    write(rig, first=200)
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize(
    ("case", "ddl"),
    [
        pytest.param("a successor", DdlPolicy.REFUSE, marks=GATED),
        *(
            pytest.param(case, ddl, marks=pytest.mark.long)
            for case in RENAMES
            for ddl in (DdlPolicy.REFUSE, DdlPolicy.SKIP)
            if (case, ddl) != ("a successor", DdlPolicy.REFUSE)
        ),
    ],
)
def test_a_hint_followed_ends_green_and_equal(rig: Rig, case: str, ddl: DdlPolicy) -> None:
    rig.run()
    rig = rig.having(ddl=ddl)
    rig.write(*RENAMES[case])
    write(rig, first=100)
    is_exchange = case in ("a swap", "in a circle")
    if is_exchange and ddl is DdlPolicy.SKIP:
        execute(rig.target_dsn, *RENAMES[case])
    for _ in range(8):
        try:
            rig.run()
            break
        except FatalError as error:
            followed(rig, error)
            if "run once with ddl=skip" in str(error):
                skip_as_the_hint_says(rig, error)
    assert_equal(rig)
    write(rig, first=200)
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("policy", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=pytest.mark.long)])
def test_tables_that_exchanged_their_schemas_are_followed_though_their_indexes_are_namesakes(
    rig: Rig, policy: DdlPolicy
) -> None:
    rig.both("CREATE SCHEMA far", "CREATE TABLE far.a (id integer PRIMARY KEY, v text)")
    rig.run()
    write(rig, first=100)
    rig.write(
        "BEGIN; CREATE SCHEMA x; ALTER TABLE a SET SCHEMA x; ALTER TABLE far.a SET SCHEMA public; "
        "ALTER TABLE x.a SET SCHEMA far; DROP SCHEMA x; COMMIT"
    )
    write(rig, first=200)
    rig = rig.having(ddl=policy)
    try:
        rig.run()
    except FatalError as error:
        assert policy is DdlPolicy.REFUSE
        followed(rig, error)
        skip_as_the_hint_says(rig, error)
        rig.run()
    assert_equal(rig)
    assert rig.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'parallel_apply_%'") == []


@gated
@pytest.mark.parametrize(
    "together",
    ["in one transaction", pytest.param("one run", marks=GATED), pytest.param("in later runs", marks=pytest.mark.long)],
)
def test_an_exchange_that_is_taken_as_done_takes_no_other_one_for_done(rig: Rig, together: str) -> None:
    """The tables are alike, and so are their keys: nothing else would show it."""
    rig.both("CREATE TABLE d (id integer PRIMARY KEY, v text DEFAULT 'd')")
    rig.run()
    rig.write(*(f"INSERT INTO {table} SELECT i FROM generate_series(100, 140) i" for table in "abcd"))
    rig.run()
    forget(rig)
    one, other = (
        [f"ALTER TABLE {a} RENAME TO x", f"ALTER TABLE {b} RENAME TO {a}", f"ALTER TABLE x RENAME TO {b}"]
        + [f"UPDATE {table} SET v = v || '!' WHERE id = 108" for table in (a, b)]
        for a, b in ("ab", "cd")
    )
    if together == "in one transaction":
        rig.transaction(*one, *other)
    else:
        rig.transaction(*one)
    if together == "one run":
        rig.transaction(*other)
    with pytest.raises(FatalError, match=r"public\.b became public\.a") as first:
        rig.run()
    followed(rig, first.value)
    if together == "in later runs":
        rig.transaction(*other)
    skip_as_the_hint_says(rig, first.value)
    if together != "in one transaction":
        forget(rig)
        with pytest.raises(FatalError, match=r"public\.d became public\.c") as second:
            rig.run()
        followed(rig, second.value)
        skip_as_the_hint_says(rig, second.value)
    rig.run()
    assert_equal(rig)


def followed(rig: Rig, error: FatalError) -> None:
    """Run what the hint has in brackets at the target."""
    printed = re.findall(r"Rename them at the target \((.*?)\), then", str(error))
    assert printed, str(error)
    execute(rig.target_dsn, *(statement for text in printed for statement in text.split("; ")))


@pytest.mark.long
def test_a_name_that_is_taken_at_the_target_stops_the_run(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    execute(rig.target_dsn, "CREATE TABLE z (id integer PRIMARY KEY)")
    rig.write("ALTER TABLE a RENAME TO z")
    with pytest.raises(FatalError, match=r"public\.a became public\.z"):
        rig.run()
    execute(rig.target_dsn, "DROP TABLE z")
    rig.run()
    assert_equal(rig)


@pytest.mark.long
def test_a_stranger_s_message_renames_nothing(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.run()
    oid = rig.rows("SELECT 'a'::regclass::oid", side="source")[0][0]
    rig.write(f"SELECT pg_logical_emit_message(true, 'parallel_apply.renamed', '{oid}')")
    write(rig, first=100)
    rig.run()
    assert_equal(rig)


SWAP = "BEGIN; ALTER TABLE p RENAME TO x; ALTER TABLE q RENAME TO p; ALTER TABLE x RENAME TO q; COMMIT"


def add_swapped(rig: Rig, *rows: str) -> None:
    """`rows` come before the swap, in a run of their own."""
    for name in ("p", "q"):
        rig.both(
            f"CREATE TABLE {name} (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)",
            f"CREATE TABLE {name}_all PARTITION OF {name} DEFAULT",
        )
    rig.run()
    rig.write(*rows, "INSERT INTO a VALUES (500)")
    rig.run()
    rig.write(
        "INSERT INTO p VALUES (1, 'of p')",
        SWAP,
        "INSERT INTO p VALUES (2, 'of q')",
        "INSERT INTO q VALUES (3, 'of p')",
        "UPDATE q SET v = 'of p, once more' WHERE id = 1",
    )


@gated
def test_a_swapped_root_is_followed_where_its_partitions_are_described_already(rig: Rig) -> None:
    """The source describes a root with each partition's first row, and not again when the root is renamed."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    add_swapped(rig, "INSERT INTO q VALUES (100, 'of q')")
    rig.run()
    assert_equal(rig)


@gated
def test_tables_that_exchanged_names_before_one_of_them_had_a_row_stop_the_run(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    add_swapped(rig)
    with pytest.raises(FatalError, match=r"public\.q became public\.p, public\.p became public\.q") as caught:
        rig.run()
    printed = str(caught.value).partition("at the target (")[2].partition("), then")[0]
    execute(rig.target_dsn, *printed.split("; "))
    rig.having(ddl=DdlPolicy.SKIP).run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize(
    ("ddl", "is_one"),
    [(DdlPolicy.APPLY, True), *(pytest.param(ddl, False, marks=pytest.mark.long) for ddl in DdlPolicy)],
)
def test_tables_that_bore_each_other_s_names_for_some_rows_are_copied_anew(
    rig: Rig, ddl: DdlPolicy, is_one: bool
) -> None:
    rig.run()
    swap = RENAMES["a swap"][0]
    changes = (swap, "INSERT INTO a (id) VALUES (900)", "INSERT INTO b (id) VALUES (901)", swap)
    if is_one:
        rig.transaction(*(change.replace("BEGIN; ", "").replace("; COMMIT", "") for change in changes))
    else:
        rig.write(*changes)
    write(rig, first=100)
    rig = rig.having(ddl=ddl)
    with pytest.raises(FatalError, match=r"public\.a lent its name") as refused:
        rig.run()
    assert "recopy --pipeline p --table public.a --table public.b" in str(refused.value)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "a"), ("public", "b")], report=lambda progress: None)
    rig.run()
    assert_equal(rig)
    write(rig, first=200)
    rig.run()
    assert_equal(rig)


@gated
def test_an_exchange_that_messages_made_at_the_target_is_not_made_again(rig: Rig) -> None:
    """The names are the same before and after: the columns tell."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.both("ALTER TABLE b ADD COLUMN more text")
    write(rig, first=100)
    rig.run()
    for text in (f"ALTER TABLE public.{old} RENAME TO {new}" for old, new in (("a", "x"), ("b", "a"), ("x", "b"))):
        rig.write(f"BEGIN; {text}; {ddl(text)}; COMMIT")
    write(rig, first=200)
    rig.run()
    assert_equal(rig)
