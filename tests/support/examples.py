"""How many examples of a property `make test` draws, and how many `make test-long` does."""

from __future__ import annotations

import os
from typing import Final

from hypothesis import HealthCheck, settings

THOROUGH: Final = "HYPOTHESIS_THOROUGH" in os.environ

_PART: Final = 4


def examples(thorough: int) -> int:
    """So many where the run is thorough, and a quarter of them otherwise."""
    return thorough if THOROUGH else max(thorough // _PART, 1)


def load_profile() -> None:
    """For properties that say no number of their own. No deadlines: a busy machine is no defect. The same examples each
    time, but where the run is thorough: what was not changed is not to fail by chance.
    """
    settings.register_profile(
        "ours",
        settings(),
        max_examples=examples(100),
        deadline=None,
        derandomize=settings().derandomize or not THOROUGH,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("ours")
