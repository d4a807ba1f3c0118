"""Sent DDL is shown as its sender wrote it, without the settings of the session."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.model.sent_ddl import renames_type, shown_ddl, statements, written

STATEMENT = "ALTER TABLE t\n    ADD c text DEFAULT 'SET LOCAL timezone = ''UTC''; '"


@pytest.mark.parametrize(
    "settings",
    [
        "",
        'SET LOCAL search_path = "public"; ',
        'SET LOCAL search_path = "a""b", "pg_temp"; SET LOCAL datestyle = \'ISO, MDY\'; ',
        "SET LOCAL timezone = 'O''Brien; '; ",
    ],
)
def test_settings_are_no_part_of_what_was_written(settings: str) -> None:
    assert written(settings + STATEMENT) == STATEMENT
    assert shown_ddl(settings + STATEMENT) == " ".join(STATEMENT.split())


def test_long_statements_are_cut() -> None:
    assert shown_ddl("SELECT " + "x" * 1000) == "SELECT " + "x" * 193


@pytest.mark.parametrize(
    ("text", "is_renamed"),
    [
        ('ALTER TYPE "Role" RENAME TO "Role_old"', True),
        ("SET LOCAL timezone = 'UTC'; alter type app.role\nrename to Role_Old;", True),
        ('ALTER TYPE "Role_old" RENAME TO "Role"', False),
        ("ALTER TYPE role RENAME TO role_older", False),
        ("ALTER TYPE role RENAME VALUE 'a' TO 'role_old'", False),
    ],
)
def test_a_type_s_new_name_is_read_from_a_text(text: str, is_renamed: bool) -> None:
    assert renames_type(text, 'public."Role"', 'public."Role_old"') is is_renamed
    assert renames_type(text, 'public."Role"[]', 'public."Role_old"[]') is is_renamed
    assert not renames_type(text, "role", "role_old")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("SELECT ';', $$;$$, $a$;$b$;$a$ AS \";\" /* ; */ -- ;", 1),
        ("DROP TABLE t; DROP TABLE u;", 3),
        ("DO $$ BEGIN DROP TABLE t; DROP TABLE u; END $$", 3),
        (r"SELECT E'\';' || e'\\', 'e;', date ';' /* /* */ ; */ /* ;", 1),
        (r"SELECT 'e\', 1; SELECT E'\\'';' AS e; SELECT type", 3),
    ],
)
def test_statements_end_where_no_string_or_comment_has_the_semicolon(text: str, count: int) -> None:
    assert len([*statements(text)]) == count
