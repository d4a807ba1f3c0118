"""Names at a server that folds letters, and grants, which may be patterns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation, Renaming
from airflow_parallel_apply.pipeline.target.mariadb.address import parse_address
from airflow_parallel_apply.pipeline.target.mariadb.rights import sees_triggers, trigger_grant
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.table_names import renaming_left, require_own_name
from tests.support.log_rows import relation


class FoldingServer:
    """A session with a server that has `lower_case_table_names = 1`."""

    address = parse_address("mariadb://u@h/shop")

    def __init__(self, *tables: str, grants: tuple[str, ...] = ()) -> None:
        self._tables = tables
        self._grants = grants

    def folded(self, place: tuple[str, str]) -> tuple[str, str]:
        return place[0].lower(), place[1].lower()

    def row(self, statement: str) -> tuple[str, ...]:
        assert statement == "SELECT CURRENT_USER()"
        return ("o'neil@%",)

    def rows(self, statement: str, values: Any = ()) -> list[tuple[str, ...]]:
        if statement == "SHOW GRANTS":
            return [(grant,) for grant in self._grants]
        wanted = {self.folded(place) for place in zip(values[::2], values[1::2], strict=True)}
        return [("shop", table) for table in self._tables if ("shop", table) in wanted]


def _session(*tables: str, grants: tuple[str, ...] = ()) -> Session:
    return cast(Session, FoldingServer(*tables, grants=grants))


def _named(name: str, number: int, oid: int) -> Relation:
    return replace(relation(number, name, "id v", key="id"), oid=oid)


@pytest.mark.parametrize(
    ("pairs", "command"),
    [
        (
            {"Orders": "OrdersNew", "OrdersNew": "Orders"},
            "RENAME TABLE `shop`.`orders` TO `shop`.`parallel_apply_renaming_0`",
        ),
        ({"Orders": "OrdersOld"}, "RENAME TABLE `shop`.`orders` TO `shop`.`ordersold`"),
        ({"Orders": "ORDERS"}, None),
    ],
    ids=["exchanged", "renamed", "in its case only"],
)
def test_a_server_that_folds_names_is_told_what_is_left_of_a_renaming(
    pairs: dict[str, str], command: str | None
) -> None:
    renaming = Renaming(is_certain=True, pairs=tuple((("public", old), ("public", new)) for old, new in pairs.items()))
    old, new = _named("Orders", 1, 7), replace(_named(pairs["Orders"], 2, 7), renaming=renaming)
    found = renaming_left(_session("orders", "ordersnew"), old, new)
    if command is None:
        assert found is None
    else:
        assert found is not None
        assert found.command.startswith(command)


def test_a_server_that_folds_names_shows_a_table_under_its_later_one() -> None:
    before, after = _named("Orders", 1, 7), _named("OrdersOld", 2, 7)
    with pytest.raises(TargetError, match="as it is called later"):
        require_own_name(_session("ordersold"), before, [before, after])


@pytest.mark.parametrize(
    ("grant", "sees"),
    [
        ("GRANT ALL PRIVILEGES ON *.* TO `u`@`%`", True),
        ("GRANT SELECT, TRIGGER ON `sh\\_p`.* TO `u`@`%`", True),
        ("GRANT TRIGGER ON `sh%`.* TO `r`", True),
        ("GRANT SELECT, TRIGGER ON `sh_p`.`orders` TO `u`@`%`", True),
        ("GRANT TRIGGER ON `sh_p`.`others` TO `u`@`%`", False),
        ("GRANT TRIGGER ON `shop`.* TO `u`@`%`", False),
        ("GRANT SELECT, INSERT, UPDATE, DELETE ON `sh_p`.* TO `u`@`%`", False),
        ("GRANT SELECT (`a`, `TRIGGER`) ON `sh_p`.`orders` TO `u`@`%`", False),
        ("GRANT `TRIGGER` TO `u`@`%`", False),
    ],
)
def test_a_grant_lets_a_user_see_triggers_of_the_tables_that_it_is_over(grant: str, sees: bool) -> None:
    grants = ("GRANT USAGE ON *.* TO `u`@`%`", grant)
    assert sees_triggers(_session(grants=grants), "sh_p", "Orders") is sees


def test_the_grant_that_is_proposed_is_over_that_database_alone() -> None:
    assert trigger_grant(_session(), "sh_p") == r"GRANT TRIGGER ON `sh\_p`.* TO 'o''neil'@'%'"
