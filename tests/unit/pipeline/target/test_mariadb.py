"""Parts of the target MariaDB that need no server: addresses, names, messages, and texts that are values there."""

from __future__ import annotations

import re
from dataclasses import replace

import pymysql
import pytest

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    Conflict,
    Deadlock,
    ParallelApplyError,
    RetryableError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.model.change import Column
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType
from airflow_parallel_apply.pipeline.target.mariadb.address import parse_address
from airflow_parallel_apply.pipeline.target.mariadb.by_hand import adding
from airflow_parallel_apply.pipeline.target.mariadb.diagnosis import place_in, translate
from airflow_parallel_apply.pipeline.target.mariadb.mapping import PATTERNS, Refused, form_of, literal
from airflow_parallel_apply.pipeline.target.mariadb.naming import StagingOwner, owner_of, staging_table
from airflow_parallel_apply.pipeline.target.mariadb.quoting import quoted, shown
from airflow_parallel_apply.pipeline.target.mariadb.table_load import way_on
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetColumn
from tests.support.log_rows import relation


def test_an_address_gives_each_table_its_place() -> None:
    address = parse_address("mariadb://us%40er:p%2Fw@db.example/shop?source_schema=sales&ssl_ca=/ca.pem")
    assert (address.user, address.password, address.port, address.ssl_ca) == ("us@er", "p/w", 3306, "/ca.pem")
    assert address.place(relation(1, "t", "id", schema="sales")) == ("shop", "t")
    assert address.place(relation(1, "t", "id", schema="public")) == ("public", "t")
    assert "p/w" not in repr(address)


@pytest.mark.parametrize("rest", ["", "/", "/a/b", "/shop?colour=red", ":x/shop"])
def test_an_address_that_names_no_database_or_an_unknown_option_is_refused_without_its_password(rest: str) -> None:
    with pytest.raises(ConfigurationError, match="mariadb://user:password@host") as raised:
        parse_address(f"mariadb://root:hush@db{rest}")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    "owner",
    [
        StagingOwner(generation=12345678, channel=63, claim="0123456789", group=99999999),
        StagingOwner(generation=1, channel=None, claim="0123456789"),
        StagingOwner(generation=1, channel=None, claim="0123456789", group=7),
    ],
)
def test_a_staging_tables_name_tells_whose_it_is_and_fits(owner: StagingOwner) -> None:
    name = staging_table("demo", owner, "attempt", 17)
    assert owner_of(name) == owner
    assert len(name) <= 64
    assert staging_table("demo", owner, "another", 17) != name != staging_table("demo", owner, "attempt", 18)
    assert owner_of("position") is None


@pytest.mark.parametrize(
    ("number", "text", "kind"),
    [
        (1062, "Duplicate entry 'hush' for key 'PRIMARY'", Conflict),
        (1213, "Deadlock found when trying to get lock", Deadlock),
        (1205, "Lock wait timeout exceeded", RetryableError),
        (2013, "Lost connection to MySQL server during query", Unavailable),
        (1045, "Access denied for user 'apply'@'%'", ConfigurationError),
        (1142, "INSERT command denied to user", ConfigurationError),
        (1366, "Incorrect double value: 'hush' for column `test`.`t`.`c` at row 3", TargetError),
    ],
)
def test_what_the_server_reports_becomes_the_error_that_says_what_to_do_and_quotes_no_value(
    number: int, text: str, kind: type[ParallelApplyError]
) -> None:
    found = translate(pymysql.err.OperationalError(number, text), op="commit", table="public.t")
    assert type(found) is kind
    assert "hush" not in str(found)
    assert ("hush" in found.telling(True)) == ("hush" in text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Incorrect double value: 'x' for column `a`.`b.c`.`the col` at row 5", ("the col", 5)),
        ("Data truncated for column 'v' at row 12", ("v", 12)),
        ("Out of range value for column 'n'", ("n", None)),
        ("CONSTRAINT `d.j` failed for `tt`.`d`", (None, None)),
    ],
)
def test_a_message_tells_column_and_row(text: str, place: tuple[str | None, int | None]) -> None:
    assert place_in(text) == place


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (ValueKind.BOOLEAN, ["t", "f"], ["true", "1", ""]),
        (ValueKind.DECIMAL, ["1", "-0.50", "99999.999"], ["NaN", "Infinity", "1e5", ""]),
        (
            ValueKind.FLOAT,
            ["0", "0.1", "-0.5", "1e-20", "5e-324", "1.7976931348623157e+308", "-1e15"],
            ["-0", "NaN", "Infinity", "-Infinity", ""],
        ),
        (ValueKind.BYTES, ["\\x", "\\x00ff"], ["\\x0", "\\xzz", "00", ""]),
        (ValueKind.DATE, ["0001-01-01", "9999-12-31"], ["infinity", "0044-03-15 BC", "10000-01-01"]),
        (ValueKind.TIME, ["24:00:00", "00:00:00.000001"], ["01:02:03+00"]),
        (ValueKind.TIMESTAMP, ["2024-02-29 12:00:00.5"], ["-infinity", "0001-01-01 00:00:00 BC", "2024-02-29"]),
        (ValueKind.INSTANT, ["2024-02-29 12:00:00+00"], ["2024-02-29 12:00:00", "2024-02-29 12:00:00+00 BC"]),
    ],
)
def test_texts_are_told_from_those_that_no_value_there_has(
    kind: ValueKind, taken: list[str], refused: list[str]
) -> None:
    assert [text for text in taken if not re.fullmatch(PATTERNS[kind], text)] == []
    assert [text for text in refused if re.fullmatch(PATTERNS[kind], text)] == []


def test_names_are_quoted_for_statements_with_values_and_shown_as_a_person_types_them() -> None:
    assert quoted("a`b", "50%") == "`a``b`.`50%%`"
    assert shown("a`b", "50%") == "`a``b`.`50%`"


def test_no_type_is_offered_for_a_key_whose_equal_values_have_several_texts() -> None:
    key = Column(name="k", type_name="citext", kind=KeyKind.NOT_CANONICAL, key=True, value=ValueType.parse("text"))
    found = TargetColumn(
        name="k",
        type="varchar",
        full_type="varchar(191)",
        charset="utf8mb4",
        collation="utf8mb4_nopad_bin",
        precision=None,
        scale=None,
        fraction=None,
        is_nullable=False,
        has_default=False,
        is_generated=False,
    )
    with pytest.raises(Refused, match="equal values of the source's have several texts") as refused:
        form_of(key, found)
    assert refused.value.wanted == ""


@pytest.mark.parametrize(
    ("value", "fill", "default"),
    [
        ("boolean", "'t'", "1"),
        ("integer 32", "'5'", "'5'"),
        ("bytes", r"E'\\x5c27'", "X'5c27'"),
        ("instant", "'2026-01-31 10:00:00+00'", "'2026-01-31 10:00:00'"),
        ("date", "'infinity'", None),
        ("text", r"E'c:\\it''s'", r"'c:\\it''s'"),
        ("text", "''", "''"),
        ("text", "NULL", None),
        ("text", None, None),
    ],
)
def test_older_rows_have_a_default_in_the_servers_words(value: str, fill: str | None, default: str | None) -> None:
    assert literal(Column(name="c", type_name="", fill=fill, value=ValueType.parse(value))) == default


@pytest.mark.parametrize(
    ("value", "fill", "added"),
    [
        ("integer 32", "'5'", "int DEFAULT '5'"),
        ("text", "'x'", "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT ('x')"),
        ("text", "NULL", "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
    ],
)
def test_a_column_is_added_with_a_default_that_mysql_takes_too(value: str, fill: str, added: str) -> None:
    column = Column(name="c", type_name="", fill=fill, value=ValueType.parse(value))
    assert adding(column) == f"ADD COLUMN `c` {added}"


def test_the_way_on_from_a_value_that_no_column_of_a_key_can_have_is_no_other_type() -> None:
    key = Column(name="k", type_name="", kind=KeyKind.DECIMAL, key=True, value=ValueType.parse("decimal 10 2"))
    assert "exclude the table. To start anew" in way_on(key)
    assert "a text column takes any value" in way_on(replace(key, key=False))
