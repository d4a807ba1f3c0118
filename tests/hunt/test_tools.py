"""Usual tools change a live database, and scenes of several sides: a trial of each kind, and the fixed seeds, which
reach them all, and all migrations.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.hunt.affairs import AFFAIRS
from tests.hunt.grammar import BULK, SCENES, TOOLS
from tests.hunt.hunter import Hunter
from tests.hunt.migrations import RECIPES
from tests.hunt.state import kinds
from tests.hunt.trials import trial
from tests.hunt.whole_tables import WHOLE_TABLES

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


def test_the_fixed_seeds_reach_every_migration_tool_and_scene() -> None:
    reached = {one.removesuffix(", told") for seed in SEEDS for one in kinds(trial(seed))}
    assert {NAMED_OTHERWISE.get(kind, kind) for kind in (*KINDS, *RECIPES, *WHOLE_TABLES)} <= reached


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("partition attached", "ATTACH PARTITION"), ("partition passes through", "DROP TABLE public.t"),
        ("partition detached", "DETACH PARTITION"),
        ("generated column recomputed", "+ 3)"), ("expression dropped", "DROP EXPRESSION"),
        ("late keys", "WHERE NOT EXISTS"),
    ],
)  # fmt: skip
def test_what_a_kind_needs_is_there_in_most_of_its_trials(kind: str, text: str) -> None:
    made = [trial(f"{kind} {number}", (kind,)) for number in range(10)]
    assert sum(any(text in one for step in each.steps for one in step.sql) for each in made) > 5
