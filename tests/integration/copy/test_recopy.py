"""Tables that are copied anew while their pipeline stays what it is."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    ParallelApplyError,
    SourceError,
    TargetError,
)
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.integration.copy.recopying import again, change, require_green_and_equal, rig_of_two_tables  # noqa: F401  # a fixture
from tests.support.ddl_messages import ddl, install
from tests.support.pooler import transaction_pooler
from tests.support.rig import Rig, execute
from tests.support.variants import gated


def test_a_column_that_was_sent_and_has_another_name_by_now_is_named(rig: Rig) -> None:
    """No row told of it before it was renamed, so no definition that was applied has it."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    require_green_and_equal(rig)
    add = "ALTER TABLE t ADD COLUMN wide bigint"
    rig.transaction(add, ddl(add))
    rig.run()
    rig.write("UPDATE t SET wide = id")
    for swap in ("ALTER TABLE t DROP COLUMN v", "ALTER TABLE t RENAME COLUMN wide TO v"):
        rig.transaction(swap, ddl(swap))
    rig.capture("captured")
    with pytest.raises(ConfigurationError, match='DROP COLUMN "wide"') as refused:
        again(rig, "t")
    commands = re.search(r"Run (ALTER .*?) at the target", str(refused.value))
    assert commands is not None
    execute(rig.target_dsn, *commands.group(1).split("; "))
    again(rig, "t")


@gated
def test_what_the_log_has_and_what_the_slot_has_are_passed_over(rig: Rig) -> None:
    require_green_and_equal(rig)
    execute(rig.target_dsn, "DELETE FROM t WHERE id < 50", "INSERT INTO t VALUES (500, 'of somebody else')")
    change(rig, "captured")
    with pytest.raises(ParallelApplyError, match=r"public\.t"):
        rig.run()
    change(rig, "not captured")
    (done,) = again(rig, "t")
    assert done.rows == rig.rows("SELECT count(*) FROM t", side="source")[0][0]
    change(rig, "later")
    require_green_and_equal(rig)
    change(rig, "last")
    require_green_and_equal(rig)


@gated
def test_statements_and_definitions_below_the_copy_are_passed_over(rig: Rig) -> None:
    rig.transaction("TRUNCATE t, u", "INSERT INTO t VALUES (1, 'one')", "INSERT INTO u VALUES (1, 'one')")
    rig.write("ALTER TABLE t ADD c integer NOT NULL DEFAULT 7", "INSERT INTO t VALUES (2, 'two', 2)")
    rig.capture("captured")
    rig.write("TRUNCATE t", "ALTER TABLE t DROP v", "INSERT INTO t VALUES (3, 3)")
    with pytest.raises(ConfigurationError, match='DROP COLUMN "v"'):
        again(rig, "t")
    execute(rig.target_dsn, "ALTER TABLE t DROP v")
    with pytest.raises(TargetError, match="lacks the column c"):
        again(rig, "t")
    execute(rig.target_dsn, "ALTER TABLE t ADD c integer")
    again(rig, "t")
    rig.write("INSERT INTO t VALUES (4, 4)", "INSERT INTO u VALUES (4, 'four')")
    require_green_and_equal(rig)
    rig.write("ALTER TABLE u ADD w integer")
    execute(rig.target_dsn, "ALTER TABLE u ADD w integer")
    rig.write("INSERT INTO u VALUES (5, 'five', 5)", "UPDATE t SET c = 5")
    require_green_and_equal(rig)


@gated
def test_ddl_on_its_way_that_the_copy_contains_is_passed_over(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    require_green_and_equal(rig)
    rig.transaction("ALTER TABLE t ADD c integer", ddl("ALTER TABLE t ADD c integer"), "UPDATE t SET c = id")
    rig.capture("captured")
    execute(rig.target_dsn, "ALTER TABLE t ADD c integer")
    again(rig, "t")
    require_green_and_equal(rig)
    rig.write("UPDATE t SET c = c + 1")
    require_green_and_equal(rig)


@gated
def test_columns_that_were_renamed_or_dropped_are_so_at_the_target_before_the_copy(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.write("ALTER TABLE t ADD c integer", "UPDATE t SET c = id")
    require_green_and_equal(rig)
    rig.write("ALTER TABLE t ADD g integer GENERATED ALWAYS AS (c * 2) STORED", "UPDATE t SET c = 0 WHERE id = 1")
    require_green_and_equal(rig)
    rename = "ALTER TABLE t RENAME COLUMN v TO w"
    rig.transaction(rename, ddl(rename), "UPDATE t SET w = 'later' WHERE id < 5")
    rig.write("ALTER TABLE t DROP COLUMN c CASCADE")
    rig.capture("captured")
    with pytest.raises(ConfigurationError, match="renamed or dropped") as refused:
        again(rig, "t")
    statements = re.findall("ALTER TABLE [^;]+?(?=; | at the target)", str(refused.value))
    assert len(statements) == 3, statements
    execute(rig.target_dsn, *statements)
    again(rig, "t")
    require_green_and_equal(rig)
    left = "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND NOT attisdropped"
    assert rig.rows(left) == [("id",), ("w",)]


RECREATED = "DROP TABLE t CASCADE; CREATE TABLE t (id integer PRIMARY KEY, v text)"


@pytest.mark.long
@pytest.mark.parametrize("is_captured", [True, False])
def test_ddl_from_before_a_copy_does_not_come_upon_it(rig: Rig, *, is_captured: bool) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    require_green_and_equal(rig)
    rig.transaction(ddl("CREATE INDEX harmless ON u (v)"))
    rig.transaction(ddl(RECREATED), "DELETE FROM u WHERE id < 10")
    if is_captured:
        rig.capture("captured")
    rig.transaction(RECREATED, "INSERT INTO t VALUES (1, 'again')")
    again(rig, "t")
    rig.transaction(ddl("CREATE INDEX later ON t (v)"), "INSERT INTO t VALUES (2, 'later')")
    with pytest.raises(ParallelApplyError, match=r"before public\.t was copied anew.*DROP TABLE t") as refused:
        rig.run()
    assert rig.rows("SELECT count(*) FROM pg_indexes WHERE indexname = 'harmless'") == [(1,)]
    until = re.search(r"ddl=skip and until=([0-9A-F]+/[0-9A-F]+)", str(refused.value))
    assert until is not None
    rig.having(ddl=DdlPolicy.SKIP).run(until=until.group(1))
    require_green_and_equal(rig)
    assert rig.rows("SELECT * FROM t ORDER BY id") == [(1, "again"), (2, "later")]
    assert rig.rows("SELECT count(*) FROM pg_indexes WHERE indexname = 'later'") == [(1,)]


@gated
@pytest.mark.parametrize("is_captured", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_table_under_a_name_that_another_had_is_copied_once_the_rename_is_followed(
    rig: Rig, *, is_captured: bool
) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    require_green_and_equal(rig)
    change(rig, "before")
    rig.transaction("ALTER TABLE t RENAME TO t_old", "CREATE TABLE t (LIKE t_old INCLUDING ALL)")
    rig.write("INSERT INTO t VALUES (1, 'new')", "INSERT INTO t_old VALUES (1000, 'old')")
    without = rig.having(tables=TablePatterns(include=("public.*",), exclude=("public.t",)))
    if is_captured:
        without.capture("captured")
    else:
        with pytest.raises(ConfigurationError, match=r"names that others had.*public\.t\b.*exclude pattern"):
            rig.run()
    with pytest.raises(ConfigurationError, match=r"exclude pattern"):
        again(rig, "t")
    without.run()
    assert without.comparison().equal
    execute(rig.target_dsn, "CREATE TABLE t (LIKE t_old INCLUDING ALL)")
    again(rig, "t")
    rig.write("UPDATE t SET v = 'later'", "UPDATE t_old SET v = 'later' WHERE id = 1000")
    require_green_and_equal(rig)


@gated
def test_a_new_table_with_rows_and_one_whose_publication_was_altered_come_in(rig: Rig) -> None:
    require_green_and_equal(rig)
    for dsn in (rig.source_dsn, rig.target_dsn):
        execute(dsn, "CREATE TABLE w (id integer PRIMARY KEY, v text)")
    rig.write("INSERT INTO w VALUES (1, 'before')")
    with pytest.raises(ConfigurationError, match=r"public\.w") as refused:
        rig.run()
    assert "recopy" in (refused.value.hint or "")
    rig.write("ALTER PUBLICATION parallel_apply_p SET TABLE t WHERE (id > 1000), u")
    change(rig, "filtered")
    assert [one.table for one in again(rig, "w", "t")] == ["w", "t"]
    rig.write("UPDATE w SET v = 'after'")
    change(rig, "whole")
    require_green_and_equal(rig)


@gated
def test_whole_schemas_that_somebody_published_are_withdrawn_as_the_hint_says(rig: Rig) -> None:
    require_green_and_equal(rig)
    rig.write('CREATE SCHEMA "Odd s"', 'ALTER PUBLICATION parallel_apply_p ADD TABLES IN SCHEMA "Odd s", public')
    change(rig, "published twice")
    with pytest.raises(SourceError, match="publishes whole schemas") as refused:
        rig.run()
    found = re.match(r"Run (ALTER PUBLICATION .+) at the source, then go on: Run `(.+?)`", refused.value.hint or "")
    assert found is not None
    rig.write(found[1])
    assert "--table public.t --table public.u" in found[2]
    again(rig, "t", "u")
    change(rig, "published once")
    require_green_and_equal(rig)


@gated
def test_the_command_tells_what_it_did(rig: Rig) -> None:
    arguments = ["--pipeline", "p", "--source", rig.source_dsn, "--target", rig.target_dsn]
    arguments += ["--log-url", rig.config.log_url, "--table"]
    told = CliRunner().invoke(app, ["recopy", *arguments, "public.t"])
    assert told.exit_code == 0, told.output
    assert re.search(r"public\.t: 100 rows, as they were at offset [0-9A-F]+/[0-9A-F]+\n", told.output)
    refused = CliRunner().invoke(app, ["recopy", *arguments, "public.nothing"])
    assert refused.exit_code == 1
    assert "public.nothing" in refused.output
    require_green_and_equal(rig)


@gated
def test_a_type_that_the_target_lacks_is_made_as_the_hint_says(rig: Rig) -> None:
    require_green_and_equal(rig)
    rig.write("CREATE DOMAIN small AS integer CHECK (VALUE < 10)", "ALTER TABLE t ADD n small", "UPDATE t SET n = 5")
    with pytest.raises(TargetError) as refused:
        again(rig, "t")
    commands = re.search(r"Run (CREATE DOMAIN .*; ALTER TABLE .*?)\. ", f"{refused.value.hint} ")
    assert commands is not None, refused.value.hint
    execute(rig.target_dsn, *commands.group(1).split("; "))
    again(rig, "t")
    require_green_and_equal(rig)


@gated
def test_a_name_with_a_dot_or_a_space_is_copied_as_its_hint_says_it(rig: Rig) -> None:
    rig = rig.having(tables=TablePatterns(include=("*.*",), exclude=("parallel_apply.*",)))
    rig.both('CREATE SCHEMA "our.shop"', 'CREATE TABLE "our.shop"."odd table" (id integer PRIMARY KEY)')
    rig.write('INSERT INTO "our.shop"."odd table" VALUES (1)')
    with pytest.raises(ParallelApplyError) as refused:
        rig.run()
    command = re.search(r"parallel-apply (recopy.*--table '.*?')", refused.value.hint or "")
    assert command is not None, refused.value.hint
    both = ["--source", rig.source_dsn, "--target", rig.target_dsn, "--log-url", rig.config.log_url]
    told = CliRunner().invoke(app, [*shlex.split(command.group(1)), *both])
    assert told.exit_code == 0, told.output
    rig.write('INSERT INTO "our.shop"."odd table" VALUES (2)')
    require_green_and_equal(rig)
    rig.write("CREATE SCHEMA our", 'CREATE TABLE our."shop.odd table" (id integer PRIMARY KEY)')
    unclear = CliRunner().invoke(app, [*shlex.split(command.group(1)), *both])
    assert "several tables that are called our.shop.odd table" in " ".join(unclear.output.split())


@pytest.mark.long
def test_a_log_without_any_row_left_is_read_compacted_and_gone_on_with(rig: Rig) -> None:
    require_green_and_equal(rig)
    for number in range(20):
        rig.write(f"UPDATE t SET v = '{number}' WHERE id = 1")
        rig.capture(f"capture {number}")
    again(rig, "t")
    assert sum(segment.row_count for segment in open_reader(rig.config.log_url).state().segments) == 0
    for number in range(20):
        rig.write(f"UPDATE t SET v = '{number}' WHERE id = 2")
        rig.capture(f"later {number}")
    require_green_and_equal(rig)


@gated
def test_another_tables_copy_leaves_in_doubt_what_somebody_else_did_to_the_publication(rig: Rig) -> None:
    require_green_and_equal(rig)
    publishing = "ALTER PUBLICATION parallel_apply_p SET (publish = '{}')"
    rig.write(
        publishing.format("insert"),
        "UPDATE t SET v = 'not sent'",
        publishing.format("insert, update, delete, truncate"),
    )
    generated = "CREATE TABLE g (id integer PRIMARY KEY, a integer, b integer GENERATED ALWAYS AS (a * 2) STORED)"
    rig.both(generated, "ALTER TABLE g REPLICA IDENTITY FULL")
    rig.write("INSERT INTO g VALUES (1, 1)")
    again(rig, "g")
    with pytest.raises(ParallelApplyError, match=r"was altered, so changes of public\.t may be missing"):
        rig.run()
    again(rig, "t", "u")
    require_green_and_equal(rig)


@gated
def test_the_copy_of_all_that_is_left_leaves_nothing_of_a_dropped_table_in_doubt(rig: Rig) -> None:
    require_green_and_equal(rig)
    rig.write("DROP TABLE u")
    again(rig, "t")
    rig.write("UPDATE t SET v = 'behind the copy'")
    rig.run()
    rows = "SELECT * FROM t ORDER BY id"
    assert rig.rows(rows) == rig.rows(rows, side="source")


@gated
def test_a_pooler_in_transaction_mode_is_refused_before_anything_is_changed(
    rig: Rig, source_server: PostgresServer
) -> None:
    require_green_and_equal(rig)
    with transaction_pooler(source_server.port) as port:
        pooled = replace(rig, source_dsn=make_conninfo(rig.source_dsn, port=port))
        with pytest.raises(ConfigurationError, match="a pooler in transaction mode"):
            again(pooled, "t")
    change(rig, "behind")
    require_green_and_equal(rig)
