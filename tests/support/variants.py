"""Parameters of which `make test` has a few and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def variants(every: Iterable[str], *, seldom: Collection[str]) -> list[Any]:
    """`seldom`: those that are much like another one."""
    assert set(seldom) <= set(every)
    return [pytest.param(one, marks=pytest.mark.long) if one in seldom else one for one in every]
