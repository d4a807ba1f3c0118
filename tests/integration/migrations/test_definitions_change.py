"""Columns added, dropped, renamed and retyped at the source while a pipeline runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import GATED, gated, variants

_TABLE = "CREATE TABLE t (id integer PRIMARY KEY, a text, b integer, c numeric(6,2))"

CHANGES = {
    "added": ["ALTER TABLE t ADD COLUMN d integer"],
    "added with a default": ["ALTER TABLE t ADD COLUMN d text NOT NULL DEFAULT 'it''s, \"so\"'"],
    "added with an array as default": ["ALTER TABLE t ADD COLUMN d integer[] DEFAULT '{1,NULL}'"],
    "dropped": ["ALTER TABLE t DROP COLUMN a"],
    "the last one dropped": ["ALTER TABLE t DROP COLUMN c"],
    "renamed": ['ALTER TABLE t RENAME COLUMN b TO "B b"'],
    "the last one renamed": ["ALTER TABLE t RENAME COLUMN c TO d"],
    "the key renamed": ["ALTER TABLE t RENAME COLUMN id TO number"],
    "dropped and another added": ["ALTER TABLE t DROP COLUMN c", "ALTER TABLE t ADD COLUMN d text DEFAULT 7"],
    "retyped": ["ALTER TABLE t ALTER COLUMN a TYPE varchar", "ALTER TABLE t ALTER COLUMN c TYPE numeric(12,2)"],
    "all of it": [
        "ALTER TABLE t RENAME COLUMN a TO z", "ALTER TABLE t DROP COLUMN b", "ALTER TABLE t ADD COLUMN a date",
        "ALTER TABLE t ALTER COLUMN c TYPE numeric(9,2)",
    ],
}  # fmt: skip


@pytest.fixture
def rig(rig: Rig) -> Rig:
    made = rig.having(channels=4, epoch_max_changes=20, ddl=DdlPolicy.REFUSE)
    made.both(_TABLE)
    made.prepare()
    made.write("INSERT INTO t SELECT i, 'a' || i, i, i / 8.0 FROM generate_series(1, 60) i")
    return made


def write_on(rig: Rig) -> None:
    """Rows old and new, whatever the columns are called now."""
    key = rig.rows("SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum = 1", side="source")[0][
        0
    ]
    rig.write(
        f"INSERT INTO t ({key}) SELECT i FROM generate_series(100, 130) i",
        f"DELETE FROM t WHERE {key} % 7 = 0",
        f"UPDATE t SET {key} = {key} + 1000 WHERE {key} % 5 = 0",
    )


def assert_equal(rig: Rig) -> None:
    comparison = rig.comparison()
    assert comparison.equal, comparison
    columns = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass"
    visible = f"{columns} AND attnum > 0 AND NOT attisdropped ORDER BY 1"
    assert rig.rows(visible) == rig.rows(visible, side="source")


@gated
@pytest.mark.parametrize(
    "change",
    variants(
        CHANGES,
        gated=[
            "added", "added with a default", "added with an array as default", "renamed", "the last one renamed",
            "dropped", "the last one dropped", "retyped",
            "dropped and another added", "the key renamed",
        ],
    ),
)  # fmt: skip
def test_ddl_apply_follows_columns(rig: Rig, change: str) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.write(*CHANGES[change])
    write_on(rig)
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize(
    "change",
    variants(
        ["added", "dropped", "the last one renamed", "retyped", "all of it"],
        seldom=["added", "dropped", "the last one renamed", "retyped"],
    ),
)
def test_without_it_the_run_stops_there_names_the_column_and_goes_on_after_a_change_by_hand(
    rig: Rig, change: str
) -> None:
    rig.write(*CHANGES[change])
    write_on(rig)
    for _ in range(2):
        with pytest.raises(FatalError, match=r"(?s)column.*table public\.t, column .*Hint: .*ALTER TABLE") as stopped:
            rig.run()
        assert rig.rows("SELECT count(*) FROM t") == [(60,)]
    execute(rig.target_dsn, *CHANGES[change])
    rig.run()
    assert_equal(rig)
    assert "seqno 1" in str(stopped.value)


@gated
def test_a_column_whose_older_rows_have_values_of_their_own_is_left_to_a_person(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.write("ALTER TABLE t ADD COLUMN d uuid DEFAULT gen_random_uuid()")
    write_on(rig)
    with pytest.raises(FatalError, match=r"column d of public\.t was added as uuid, and the log does not tell"):
        rig.run()
    assert rig.rows("SELECT count(*) FROM t") == [(60,)]


@gated
def test_a_change_of_type_that_only_its_author_can_make_is_left_to_him(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.write("ALTER TABLE t ALTER COLUMN a TYPE integer USING substr(a, 2)::integer")
    write_on(rig)
    with pytest.raises(FatalError, match=r"public\.t was rewritten while a changed(?s:.*)parallel-apply vouch"):
        rig.run()
    rig = rig.having(ddl=DdlPolicy.SKIP)
    with pytest.raises(FatalError, match=r"column a of public\.t became integer"):
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE t ALTER COLUMN a TYPE integer USING substr(a, 2)::integer")
    rig.run()
    assert_equal(rig)


@gated
def test_what_a_message_did_already_is_not_done_again(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    for ddl in ("ALTER TABLE t ADD COLUMN d integer DEFAULT 5", "ALTER TABLE t RENAME a TO e", "ALTER TABLE t DROP b"):
        rig.transaction(ddl, rig.ddl(ddl))
    write_on(rig)
    rig.run()
    assert_equal(rig)


@gated
def test_a_message_of_a_database_with_another_encoding_is_read_as_what_it_says(
    rig: Rig, source_server: PostgresServer, tmp_path: Path
) -> None:
    execute(
        source_server.dsn(),
        "DROP DATABASE IF EXISTS latin1 WITH (FORCE)",
        "CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'",
    )
    rig = Rig(config=rig.config, source_dsn=source_server.dsn("latin1"), target_dsn=rig.target_dsn)
    rig = rig.having(pipeline="latin1", log_url=str(tmp_path / "other"), ddl=DdlPolicy.APPLY)
    rig.write(_TABLE)
    rig.prepare()
    ddl = "ALTER TABLE t ADD COLUMN \"né\" text DEFAULT 'ü'"
    rig.transaction(ddl, rig.ddl(ddl))
    write_on(rig)
    rig.run()
    assert_equal(rig)
    execute(
        source_server.dsn(),
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = 'latin1'",
        "DROP DATABASE latin1 WITH (FORCE)",
    )


@gated
def test_a_refused_message_that_was_run_by_hand_is_skipped(rig: Rig) -> None:
    ddl = "ALTER TABLE t ADD COLUMN d integer DEFAULT 5"
    rig.transaction(ddl, rig.ddl(ddl))
    write_on(rig)
    with pytest.raises(FatalError, match="ddl=skip"):
        rig.run()
    with pytest.raises(FatalError, match="column d"):
        rig.having(ddl=DdlPolicy.SKIP).run()
    execute(rig.target_dsn, ddl)
    rig.having(ddl=DdlPolicy.SKIP).run()
    assert_equal(rig)


@gated
def test_a_change_in_the_middle_of_a_transaction_and_a_large_load_behind_it(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.transaction(
        "UPDATE t SET b = 0 WHERE id < 10",
        "ALTER TABLE t ADD COLUMN d integer DEFAULT 3",
        "UPDATE t SET d = 4 WHERE id < 20",
        "INSERT INTO t SELECT i, NULL, i, 1, i FROM generate_series(5000, 5900) i",
        "ALTER TABLE t DROP COLUMN a",
        "DELETE FROM t WHERE id < 15",
    )
    write_on(rig)
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("told", [False, pytest.param(True, marks=GATED)])
def test_a_name_that_another_column_has_by_now_is_that_of_the_column_of_then(rig: Rig, told: bool) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.write("UPDATE t SET c = 1 WHERE id = 1")
    for ddl in ("ALTER TABLE t RENAME c TO d", "ALTER TABLE t ADD c numeric(6,2)"):
        message = rig.ddl(ddl)
        rig.transaction(ddl, *([message] if told else []))
        rig.write("UPDATE t SET d = 2 WHERE id = 2")
    rig.run()
    assert_equal(rig)


def test_a_dropped_column_may_leave_with_its_type_before_it_is_captured(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("""CREATE TYPE "Mood" AS ENUM ('sad')""", 'CREATE TABLE u (id integer PRIMARY KEY, m "Mood", ms "Mood"[])')
    rig.run()
    rig.write("INSERT INTO u VALUES (1, 'sad', '{sad}')", "ALTER TABLE u DROP m, DROP ms", 'DROP TYPE "Mood"')
    rig.write("INSERT INTO u VALUES (2)")
    rig.run()
    assert_equal(rig)
    assert rig.rows("SELECT u FROM u ORDER BY id") == rig.rows("SELECT u FROM u ORDER BY id", side="source")


@gated
def test_tables_of_one_truncate_of_which_the_last_changed_before_are_truncated_together(rig: Rig) -> None:
    """One alone could not be: the other one refers to it."""
    rig.both("CREATE TABLE child (id integer PRIMARY KEY, t integer REFERENCES t)")
    rig.run()
    rig.write("INSERT INTO child SELECT i, i FROM generate_series(1, 9) i")
    rig.transaction("ALTER TABLE t ADD COLUMN d integer", "TRUNCATE child, t", "INSERT INTO t VALUES (1)")
    rig.having(ddl=DdlPolicy.APPLY).run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("ddl", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=pytest.mark.long)])
def test_a_key_that_moves_to_a_column_that_takes_its_name_is_followed_or_its_hints_lead_on(
    rig: Rig, ddl: DdlPolicy
) -> None:
    rig.both("CREATE TABLE swapped (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig = rig.having(ddl=ddl)
    rig.write(
        "INSERT INTO swapped VALUES (1, 'a'), (2, 'b')",
        "ALTER TABLE swapped ADD id_new bigint",
        "UPDATE swapped SET id_new = id",
        "CREATE UNIQUE INDEX swapped_new ON swapped (id_new)",
        "ALTER TABLE swapped ALTER id_new SET NOT NULL",
        "BEGIN; ALTER TABLE swapped DROP id; ALTER TABLE swapped RENAME id_new TO id; "
        "ALTER TABLE swapped ADD PRIMARY KEY USING INDEX swapped_new; COMMIT",
        "UPDATE swapped SET v = 'c' WHERE id = 2",
        "UPDATE swapped SET id = 5 WHERE id = 1",
    )
    followed = []
    while ddl is DdlPolicy.REFUSE and len(followed) < 6:
        try:
            rig.run()
            break
        except FatalError as error:
            (printed,) = re.findall(r"(?:\(|Run )((?:ALTER|CREATE) .*?)(?:\), then| at the target)", str(error))
            followed.append(printed)
            execute(rig.target_dsn, *followed[-1].split("; "))
    assert ddl is DdlPolicy.APPLY or followed[-1] == 'CREATE UNIQUE INDEX ON "public"."swapped" ("id")'
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_run_that_skips_a_refused_statement_skips_the_rest_of_its_transaction_which_is_told(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE s (id integer PRIMARY KEY, v text, u text)")
    rig.run()
    rig.write("INSERT INTO s VALUES (1, 'v', 'u')")
    rig.run()
    execute(rig.target_dsn, "ALTER TABLE t ADD d integer")
    swap = ("ALTER TABLE s RENAME v TO x", "ALTER TABLE s RENAME u TO v", "ALTER TABLE s RENAME x TO u")
    sent = (swap[0], "ALTER TABLE t ADD d integer", *swap[1:])
    rows = ("INSERT INTO t (id, d) VALUES (200, 2)", "INSERT INTO s (id, v, u) VALUES (2, 'v', 'u')")
    rig.transaction(*(one for text in sent for one in (text, rig.ddl(text))), *rows)
    with pytest.raises(FatalError, match=r"already exists.*Do the rest of that .*except on tables that were") as told:
        rig.run()
    execute(rig.target_dsn, *re.findall(r"ALTER TABLE s RENAME \w TO \w", str(told.value)))
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert_equal(rig)


@gated
def test_a_run_that_takes_a_definition_as_done_skips_what_its_transaction_sent_which_is_told(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE TABLE s (id integer PRIMARY KEY, v text)")
    rig.run()
    rig.write("INSERT INTO s VALUES (1, 'v')")
    rig.run()
    sent, unsent = (
        "ALTER TABLE s ALTER v TYPE text USING upper(v)",
        "ALTER TABLE t ADD n uuid DEFAULT gen_random_uuid()",
    )
    rig.transaction(sent, rig.ddl(sent), unsent, "INSERT INTO t (id) VALUES (200)", "INSERT INTO s VALUES (2, 'w')")
    with pytest.raises(FatalError, match=r"older rows hold.*Run that at the target first, except on tables") as told:
        rig.run()
    assert f"were copied anew since: {sent}. " in str(told.value)
    execute(rig.target_dsn, "ALTER TABLE t ADD n uuid", sent)
    for number, value in rig.rows("SELECT id, n FROM t WHERE id < 200", side="source"):
        execute(rig.target_dsn, f"UPDATE t SET n = '{value}' WHERE id = {number}")
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert_equal(rig)


@gated
def test_a_column_that_went_with_its_type_is_followed_behind_the_rows_that_have_it(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.both("CREATE DOMAIN d AS integer", "ALTER TABLE t ADD COLUMN e d")
    rig.write("INSERT INTO t (id, e) VALUES (100, 1)")
    rig.run()
    rig.write("INSERT INTO t (id, e) VALUES (101, 1)", "DROP DOMAIN d CASCADE", "INSERT INTO t (id) VALUES (102)")
    rig.run()
    assert rig.comparison().equal, rig.comparison()
