"""Usual tools change a live database, and scenes of several sides: a trial of each kind, and the fixed seeds, which
reach them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.hunt.affairs import AFFAIRS
from tests.hunt.grammar import BULK, SCENES, TOOLS
from tests.hunt.hunter import Hunter
from tests.hunt.state import kinds
from tests.hunt.trials import trial

KINDS: Final = sorted({**TOOLS, **BULK, **SCENES, **AFFAIRS})
SEEDS: Final = (Path(__file__).parent / "seeds.txt").read_text(encoding="utf-8").split()
NAMED_OTHERWISE: Final = {"sequences": "sequences restarted", "source gone back": "source lost others"}
"""Kinds whose steps say more than the kind."""


@pytest.fixture(scope="module")
def hunter() -> Iterator[Hunter]:
    one = Hunter()
    yield one
    one.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_green_means_equal_whatever_a_tool_does(hunter: Hunter, kind: str) -> None:
    outcome = hunter.play(trial(f"tool {kind}", (kind,)))
    assert not outcome.kind, outcome.what


def test_the_fixed_seeds_reach_every_tool_and_scene() -> None:
    reached = {one.removesuffix(", told") for seed in SEEDS for one in kinds(trial(seed))}
    assert {NAMED_OTHERWISE.get(kind, kind) for kind in KINDS} <= reached
