"""Parameters and tests of which `make test` has a few, and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

GATED: Final = (pytest.mark.long, pytest.mark.gated)
"""The marks of what `make test` leaves out and `.ci/run` plays a share of."""


def gated(test: Test) -> Test:
    """Mark a test with `GATED`."""
    for mark in GATED:
        test = mark(test)
    return test


def variants(every: Iterable[str], *, seldom: Collection[str] = (), gated: Collection[str] = ()) -> list[Any]:
    """`seldom`: those that are much like another one. `gated`: those of which `.ci/run` plays a share."""
    every = list(every)
    assert {*seldom, *gated} <= set(every)
    marks = dict.fromkeys(seldom, (pytest.mark.long,)) | dict.fromkeys(gated, GATED)
    return [pytest.param(one, marks=marks[one]) if one in marks else one for one in every]
