"""A source that sends what its tables become: what the catalog cannot tell later is followed all the same."""

from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import PLAIN, begin, either_kind, recopied
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import GATED, gated, variants

FOLLOWED = {
    "a default in a table that was rewritten": [
        "ALTER TABLE t ADD c integer DEFAULT 5", "ALTER TABLE t ALTER c DROP DEFAULT", "VACUUM FULL t",
    ],
    "the time of the change": [
        "ALTER TABLE t ADD c timestamptz DEFAULT now()", "ALTER TABLE t ALTER c DROP DEFAULT", "VACUUM FULL t",
    ],
    "a column that was made three times": [
        "ALTER TABLE t ADD c integer DEFAULT 5", "ALTER TABLE t DROP c", "ALTER TABLE t ADD c integer DEFAULT 6",
        "ALTER TABLE t DROP c", "ALTER TABLE t ADD c integer DEFAULT 7", "ALTER TABLE t ALTER c DROP DEFAULT",
        "VACUUM FULL t",
    ],
    "a name that passed on": [
        "ALTER TABLE t RENAME b TO c", "INSERT INTO t VALUES (101, 'x', 5)", "ALTER TABLE t DROP c",
        "ALTER TABLE t ADD c integer", "INSERT INTO t VALUES (102, 'x', 6)",
    ],
}  # fmt: skip

UNDER_SETTINGS = {
    "digits": ("extra_float_digits = 0", "float8 DEFAULT 0.12345678901234568"),
    "a style of dates": ("datestyle = 'SQL, DMY'", "date DEFAULT DATE '2011-12-10'"),
    "a time zone": (
        "timezone = 'Asia/Tokyo'; SET datestyle = 'German'",
        "timestamptz DEFAULT TIMESTAMPTZ '2011-12-10'",
    ),
    "names in quotes": ("quote_all_identifiers = on", "other_domain DEFAULT 'x'"),
    "apart by semicolons": ("array_nulls = off", "box DEFAULT '(1,1),(0,0)'"),
}


@pytest.fixture
def rig(rig: Rig) -> Rig:
    install(rig.source_dsn)
    return rig.having(tables=TablePatterns(include=("public.*",)))


@pytest.mark.parametrize(
    ("recipe", "tables"),
    either_kind(FOLLOWED, gated=["the time of the change", "a default in a table that was rewritten"]),
)
def test_a_value_that_the_catalog_has_forgotten_is_in_what_was_sent(
    rig: Rig, recipe: str, tables: tuple[str, ...]
) -> None:
    begin(rig, *tables)
    rig.write(*FOLLOWED[recipe])
    rig.write("INSERT INTO t (id, a) VALUES (100, 'x')", "UPDATE t SET a = 'z' WHERE id < 5")
    rig.run()
    assert rig.comparison().equal


@gated
def test_it_is_known_to_later_runs_too(rig: Rig) -> None:
    begin(rig, *PLAIN)
    rig.write(*FOLLOWED["a default in a table that was rewritten"])
    rig.run()
    rig.run()
    rig.write("DELETE FROM t WHERE id = 7")
    rig.run()
    assert rig.comparison().equal


@gated
def test_rows_before_and_behind_a_change_in_one_transaction_are_each_read_as_what_they_were(rig: Rig) -> None:
    begin(rig, *PLAIN)
    rig.transaction(
        "UPDATE t SET b = 0 WHERE id < 9",
        "ALTER TABLE t ADD c integer DEFAULT 5",
        "ALTER TABLE t ALTER c DROP DEFAULT",
        "UPDATE t SET c = 1 WHERE id < 5",
        "ALTER TABLE t RENAME c TO d",
        "ALTER TABLE t ADD c integer DEFAULT 8",
        "INSERT INTO t VALUES (200, 'x', 1, 2, 3)",
        "ALTER TABLE t ALTER c DROP DEFAULT",
    )
    rig.write("VACUUM FULL t", "DELETE FROM t WHERE id = 7")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_column_that_came_and_went_is_told_of_rows_that_are_known_by_all_their_values(rig: Rig) -> None:
    begin(rig, "CREATE TABLE t (id integer, a text, b integer)", "ALTER TABLE t REPLICA IDENTITY FULL")
    rig.write("ALTER TABLE t ADD c boolean DEFAULT false", "INSERT INTO t VALUES (1, 'a1', 1, true)")
    rig.write("UPDATE t SET id = id + 1", "ALTER TABLE t DROP c", "UPDATE t SET a = 'z' WHERE id < 5")
    rig.run()
    assert rig.comparison().equal


_COMPUTED_BY = "ALTER TABLE t ALTER b TYPE text USING (b + length(c::text))::text"


def came_and_went(rig: Rig, column: str, *, is_sent: bool) -> None:
    """A column that a sent USING reads comes and goes between two runs, with rows in between."""
    made, gone = f"ALTER TABLE t ADD c {column}", "ALTER TABLE t DROP c"
    rig.transaction(made, *([ddl(made)] if is_sent else []))
    rig.write("INSERT INTO t (id, b) VALUES (98, 4)")
    rig.transaction(_COMPUTED_BY, ddl(_COMPUTED_BY))
    rig.transaction(gone, *([ddl(gone)] if is_sent else []))
    rig.write("INSERT INTO t (id, b) VALUES (99, 'x')")


@pytest.mark.parametrize("is_sent", [True, pytest.param(False, marks=GATED)])
def test_what_a_sent_using_read_of_a_column_that_is_gone_is_told(rig: Rig, is_sent: bool) -> None:
    begin(rig, *PLAIN)
    came_and_went(rig, "integer DEFAULT 5", is_sent=is_sent)
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("is_sent", [True, False])
def test_what_nobody_tells_of_such_a_column_stops_the_run(rig: Rig, is_sent: bool) -> None:
    begin(rig, *PLAIN)
    came_and_went(rig, "text DEFAULT repeat('x', (random() * 9)::integer)", is_sent=is_sent)
    with pytest.raises(
        FatalError, match=r"older rows of public\.t held in c: (?s:.*)recopy .*--table public\.t"
    ) as told:
        rig.run()
    recopied(rig, "ALTER TABLE t ALTER b TYPE text, DROP c")
    with suppress(FatalError):
        rig.run()
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_value_of_its_own_for_each_row_still_stops_the_run(rig: Rig) -> None:
    begin(rig, *PLAIN)
    rig.write("ALTER TABLE t ADD c uuid DEFAULT gen_random_uuid()", "ALTER TABLE t ALTER c DROP DEFAULT")
    rig.write("DELETE FROM t WHERE id = 7")
    with pytest.raises(FatalError, match=r"column c of public\.t was added .*(?s:.*)recopy .*--table public\.t"):
        rig.run()


def add_column(rig: Rig, setting: str, column: str) -> None:
    """In a session with settings of its own, and such that nothing but what was sent tells what older rows hold."""
    begin(rig, *PLAIN)
    with psycopg.connect(rig.source_dsn, autocommit=True) as connection:
        connection.execute(f"SET {setting}".encode())
        connection.execute(f"ALTER TABLE t ADD c {column}".encode())
    rig.write("ALTER TABLE t ALTER c DROP DEFAULT", "INSERT INTO t (id) VALUES (100)", "VACUUM FULL t")


@pytest.mark.parametrize(
    "case", variants(UNDER_SETTINGS, seldom=["a time zone", "a style of dates", "names in quotes"])
)
def test_values_are_sent_as_they_are_whatever_the_settings_of_the_session_that_adds_them(rig: Rig, case: str) -> None:
    rig.both("CREATE DOMAIN other_domain AS text")
    add_column(rig, *UNDER_SETTINGS[case])
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_values_that_an_earlier_version_s_trigger_sends_prove_nothing(rig: Rig) -> None:
    with psycopg.connect(rig.source_dsn, autocommit=True) as connection:
        (text,) = connection.execute("SELECT pg_get_functiondef('parallel_apply.sighting'::regproc)").fetchone() or (
            "",
        )
        connection.execute("ALTER FUNCTION parallel_apply.sighting RESET ALL")
        head, _, body = text.replace("'is_exact', true,", "").partition("\nAS ")
        former = "\n".join(line for line in head.splitlines() if not line.startswith(" SET "))
        connection.execute(f"{former}\nSET search_path = pg_catalog, pg_temp\nAS {body}".encode())
    add_column(rig, *UNDER_SETTINGS["digits"])
    for policy in (DdlPolicy.APPLY, DdlPolicy.REFUSE):
        (told,) = [
            finding
            for finding in check_pipeline(rig.having(ddl=policy).config, rig.source, rig.target).findings
            if finding.where == "parallel_apply.sighting"
        ]
        assert "install-ddl-capture` again" in told.note
    with pytest.raises(FatalError, match=r"column c of public\.t was added .*(?s:.*)recopy .*--table public\.t"):
        rig.run()
    install(rig.source_dsn)
    where = [finding.where for finding in check_pipeline(rig.config, rig.source, rig.target).findings]
    assert "parallel_apply.sighting" not in where


def test_what_is_not_followed_is_neither_sent_nor_held_up(rig: Rig) -> None:
    begin(rig, *PLAIN)
    before = open_reader(rig.config.log_url).state().sightings
    with psycopg.connect(rig.source_dsn, autocommit=True) as connection:
        notices: list[str] = []
        connection.add_notice_handler(lambda told: notices.append(told.message_primary or ""))
        for statement in (
            "CREATE SCHEMA aside",
            "CREATE TABLE aside.other (id integer PRIMARY KEY)",
            "ALTER TABLE aside.other ADD v text",
            "CREATE TEMP TABLE mine (id integer)",
            "ALTER TABLE mine ADD v text",
            "CREATE INDEX ON aside.other (v)",
        ):
            connection.execute(statement)  # type: ignore[arg-type]
        assert notices == []
    rig.run()
    assert open_reader(rig.config.log_url).state().sightings == before


@gated
def test_a_key_that_the_source_makes_is_not_blamed_on_a_right_that_the_role_has(rig: Rig) -> None:
    """A new key looks at all rows, whatever the role may set."""
    rig.both("CREATE TABLE one (id integer PRIMARY KEY)", "CREATE TABLE many (id integer PRIMARY KEY, one_id integer)")
    rig.prepare()
    rig.write("INSERT INTO one VALUES (1)", "INSERT INTO many VALUES (1, 1)")
    rig.run()
    execute(rig.target_dsn, "DELETE FROM one")
    change = "ALTER TABLE many ADD FOREIGN KEY (one_id) REFERENCES one"
    rig.transaction(change, rig.ddl(change))
    with pytest.raises(FatalError, match="Did somebody else write there") as refused:
        rig.run()
    assert "GRANT" not in str(refused.value)


@gated
def test_generated_columns_come_and_go_behind_rows_that_were_written_before(rig: Rig) -> None:
    """No message of a row names them, so at the first row it has to be known that they are not there yet, or still."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, n integer)")
    rig.prepare()
    statements = (
        "ALTER TABLE t ADD v integer GENERATED ALWAYS AS (n * 2) VIRTUAL, ADD s integer GENERATED ALWAYS AS (n) STORED",
        "ALTER TABLE t DROP v, ALTER s DROP EXPRESSION",
    )
    for number, statement in enumerate(statements):
        rig.write(f"INSERT INTO t VALUES ({2 * number}, 7)")
        rig.transaction(statement, ddl(statement))
        rig.write(f"INSERT INTO t (id, n) VALUES ({2 * number + 1}, 7)")
        rig.run()
        assert rig.comparison().equal, rig.comparison()


@gated
def test_a_generated_column_goes_behind_the_renaming_of_what_it_reads(rig: Rig) -> None:
    """The log has its expression with the names of before, and the catalog has none any more."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, n integer, g integer GENERATED ALWAYS AS (n + 1) STORED)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (0, 7)")
    rig.run()
    for number, statement in enumerate(("RENAME n TO k", "DROP g", "ADD g integer DEFAULT 4"), start=1):
        rig.write(f"INSERT INTO t SELECT {10 * number}, 7", f"ALTER TABLE t {statement}")
        rig.write(f"INSERT INTO t SELECT {10 * number + 1}, 8")
    rig.run()
    assert rig.comparison().equal, rig.comparison()


@gated
def test_a_change_of_type_that_a_column_of_another_type_does_not_follow_stops_the_run(rig: Rig) -> None:
    """The source rounds older rows; nothing casts the texts that the target has of them."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    execute(rig.source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, n numeric(6,2), m integer)")
    execute(rig.target_dsn, "CREATE TABLE t (id integer PRIMARY KEY, n text, m text)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 1.55, 5)")
    rig.run()
    rig.write("ALTER TABLE t ALTER m TYPE bigint", "INSERT INTO t VALUES (2, 2, 6)")
    rig.run()
    rig.write("ALTER TABLE t ALTER n TYPE numeric(6,1)", "INSERT INTO t VALUES (3, 3, 7)")
    with pytest.raises(FatalError, match=r"became numeric\(6,1\).*recopy"):
        rig.run()
