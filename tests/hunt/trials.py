"""The trial of a seed: PostgreSQL's, or that of the target that the seed names."""

from __future__ import annotations

from collections.abc import Collection

from tests.hunt import grammar
from tests.hunt.step import Trial
from tests.hunt.targets import grammar as grammar_of_others
from tests.hunt.targets.open import POSTGRES, named


def trial(seed: str, only: Collection[str] = ()) -> Trial:
    """The same for the same seed, on every machine. `only`: kinds of exotic things; empty: all. Errors: `KeyError` for
    a target that is not known.
    """
    return grammar.trial(seed, only) if named(seed) == POSTGRES else grammar_of_others.trial(seed, only)
