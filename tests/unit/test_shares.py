"""Shares of the tests: each is in one, and what is no share is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.shares import split


def test_every_test_is_in_one_share() -> None:
    items: list[Any] = list(range(10))
    shares = [split(items, f"{number}/4") for number in (1, 2, 3, 4)]
    assert [mine for mine, _ in shares] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert all(sorted(mine + others) == items for mine, others in shares)


@pytest.mark.parametrize("share", ["", "1", "0/4", "5/4", "-1/4", "1/0", "a/4", "1/4/2"])
def test_what_is_no_share_is_refused(share: str) -> None:
    with pytest.raises(pytest.UsageError, match="give which share of how many"):
        split([], share)
