"""`recopy` with `create_tables`: tables that the target lacks are made as the source has them, and filled."""

from __future__ import annotations

import logging
import re

import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from tests.integration.copy.recopying import again, change, require_green_and_equal, rig_of_two_tables  # noqa: F401  # a fixture
from tests.support.rig import Rig, execute
from tests.support.variants import gated

TABLES = (
    "CREATE TYPE size AS ENUM ('small', 'large')",
    "CREATE TABLE item (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, size size NOT NULL DEFAULT 'small', "
    "u_id integer REFERENCES u, price numeric(8, 2) CHECK (price > 0), "
    "gross numeric GENERATED ALWAYS AS (price * 1.2) STORED)",
    "CREATE INDEX item_size ON item (size)",
    "CREATE TABLE day (d date, n integer, PRIMARY KEY (d, n)) PARTITION BY RANGE (d)",
    "CREATE TABLE day_25 PARTITION OF day FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')",
    "INSERT INTO item (size, u_id, price) SELECT 'large', i, i FROM generate_series(1, 20) i",
    "INSERT INTO day SELECT '2025-02-01'::date + i, i FROM generate_series(1, 30) i",
)
MORE = (
    "INSERT INTO item (u_id, price) VALUES (1, 7)",
    "UPDATE item SET price = price + 1 WHERE id < 5",
    "DELETE FROM day WHERE n = 3",
)


def constraints(rig: Rig, table: str) -> list[str]:
    query = f"SELECT conname FROM pg_constraint WHERE conrelid = '{table}'::regclass ORDER BY 1"
    return [name for (name,) in rig.rows(query)]


def test_a_new_table_with_rows_needs_one_command(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    require_green_and_equal(rig)
    rig.write(*TABLES)
    change(rig, "before the copy")
    for step in (rig.run, lambda: again(rig.having(create_tables=False), "item", "day")):
        with pytest.raises(
            ParallelApplyError, match=r"public\.item is missing.*`recopy` of the table with --create-tables"
        ):
            step()
    with caplog.at_level(logging.WARNING):
        assert [done.rows for done in again(rig, "item", "day")] == [20, 30]
    rig.write(*MORE)
    require_green_and_equal(rig)
    assert not [name for name in constraints(rig, "item") if "fkey" in name]
    (key,) = re.findall(r"you may run: (ALTER TABLE .*)", caplog.text)
    execute(rig.target_dsn, key)
    assert rig.rows("SELECT nextval(pg_get_serial_sequence('item', 'id'))") == [(21,)]
    assert rig.rows("SELECT 1 FROM pg_indexes WHERE indexname = 'item_size'") == [(1,)]
    assert rig.rows("SELECT count(*) FROM day_25") == [(29,)]


def test_a_table_that_the_target_lost_is_made_again(rig: Rig) -> None:
    require_green_and_equal(rig)
    execute(rig.target_dsn, "DROP TABLE t")
    change(rig, "meanwhile")
    with pytest.raises(ParallelApplyError, match=r"t is missing.*`recopy` of the table with --create-tables"):
        rig.run()
    ends = ["--source", rig.source_dsn, "--target", rig.target_dsn, "--log-url", rig.config.log_url]
    done = CliRunner().invoke(app, ["recopy", "--create-tables", "--pipeline", "p", "--table", "public.t", *ends])
    assert done.exit_code == 0, done.output
    require_green_and_equal(rig)


@gated
def test_what_cannot_be_made_is_refused_before_anything_is_changed(rig: Rig) -> None:
    require_green_and_equal(rig)
    rig.write(*TABLES)
    execute(rig.target_dsn, "CREATE VIEW item AS SELECT 1")
    with pytest.raises(ConfigurationError, match="cannot be made at the target"):
        again(rig, "item", "day")
    assert rig.rows("SELECT to_regclass('day')") == [(None,)]
    execute(rig.target_dsn, "DROP VIEW item")
    again(rig, "item", "day")
    require_green_and_equal(rig)


@gated
@pytest.mark.parametrize(
    ("made", "column"),
    [
        ("CREATE FUNCTION f(integer) RETURNS integer IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 1'", "CHECK (f(id) > 0)"),
        ("CREATE COLLATION own (locale = 'C')", ", v text COLLATE own"),
    ],
)
def test_what_a_definition_uses_and_the_target_lacks_is_named(rig: Rig, made: str, column: str) -> None:
    require_green_and_equal(rig)
    rig.write(made, f"CREATE TABLE d (id integer PRIMARY KEY {column})", "INSERT INTO d VALUES (1)")
    with pytest.raises(ConfigurationError, match=r"cannot be made at the target: .* does not exist") as told:
        again(rig, "d")
    assert "Make there what the source's definitions use" in (told.value.hint or "")
    execute(rig.target_dsn, made)
    again(rig, "d")
    require_green_and_equal(rig)


@gated
def test_foreign_keys_are_in_no_way(rig: Rig) -> None:
    """Neither what they refer to nor the right to it is asked for: they are not made."""
    require_green_and_equal(rig)
    rig.write("ALTER TABLE u ADD UNIQUE (v, id)", *TABLES, "ALTER TABLE item ADD w text DEFAULT 'first'")
    rig.write("ALTER TABLE item ADD FOREIGN KEY (w, u_id) REFERENCES u (v, id)")
    again(rig, "item", "day")
    require_green_and_equal(rig)


@gated
def test_a_type_of_the_targets_own_is_named(rig: Rig) -> None:
    require_green_and_equal(rig)
    rig.write("CREATE DOMAIN money2 AS numeric(8, 2)", "CREATE TABLE d (id integer PRIMARY KEY, m money2)")
    rig.write("INSERT INTO d VALUES (1, 1.5)")
    execute(rig.target_dsn, "CREATE DOMAIN money2 AS numeric(6, 3)")
    with pytest.raises(ParallelApplyError, match="a type of that name has another definition"):
        again(rig, "d")
    execute(rig.target_dsn, "DROP DOMAIN money2")
    again(rig, "d")
    require_green_and_equal(rig)


@gated
def test_a_sequence_of_the_targets_own_stays_its_own(rig: Rig) -> None:
    require_green_and_equal(rig)
    rig.write("CREATE TABLE s (id serial PRIMARY KEY)", "INSERT INTO s DEFAULT VALUES")
    execute(rig.target_dsn, "CREATE SEQUENCE s_id_seq")
    with pytest.raises(ConfigurationError, match="cannot be made at the target"):
        again(rig, "s")
    execute(rig.target_dsn, "ALTER SEQUENCE s_id_seq RENAME TO mine")
    again(rig, "s")
    require_green_and_equal(rig)
