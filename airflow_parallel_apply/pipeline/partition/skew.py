"""Skew: what channels of uneven size cost, in words.

Rows are staged in even parts whatever the channels are (see `store.even_ranges`), and under consistency `epoch` one
lane commits all channels anyway. Where each channel commits by itself, the fullest one's merges follow one another, and
the others wait for it in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_WORTH_TELLING: Final = 1.25
_FEW_ROWS: Final = 10_000


def skew_of(rows: Sequence[int]) -> float:
    """The fullest channel's rows over the mean; 1.0 is even. `rows`: by channel."""
    whole = sum(rows)
    return max(rows) * len(rows) / whole if whole else 1.0


def cost_of_skew(rows: Sequence[int]) -> str | None:
    """A sentence on what it costs where channels commit by themselves; None where rows are about even, or few."""
    skew = skew_of(rows)
    if skew < _WORTH_TELLING or sum(rows) < _FEW_ROWS:
        return None
    channels = len(rows)
    return (
        f"channel {rows.index(max(rows))} has {max(rows) / sum(rows):.0%} of the changes: they are staged evenly, but "
        f"with consistency=channel merged as if there were {channels / skew:.1f} channels instead of {channels}"
    )
