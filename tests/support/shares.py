"""`--share=2/4`: every fourth of the tests, from the second on, so that four runs play all of them."""

from __future__ import annotations

import pytest


def split(items: list[pytest.Item], share: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests of a share, and the others.

    Neighbours are much alike, so each share has some of every file. Raises `pytest.UsageError` for what is no share.
    """
    number, _, count = share.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise pytest.UsageError(f"--share={share}: give which share of how many, as in --share=2/4")
    mine: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for place, item in enumerate(items):
        (mine if place % int(count) == int(number) - 1 else others).append(item)
    return mine, others
