"""Divides the bucket space into ranges of about as many rows each.

Rows of one key have one bucket, so a range holds all rows of its keys, and the ranges can be read, ordered and reduced
side by side, whatever channels the rows belong to. A bucket is never divided: neither are a hot key, nor a table whose
keys have no canonical text.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

_TOLERANCE: Final = 0.05
"""The part of a range's share by which a cut may be moved to where row groups are likely to end."""


def even_ranges(rows: npt.NDArray[np.int64], parts: int) -> tuple[tuple[int, int], ...]:
    """First and last bucket of each range, in order: `parts` of them, fewer where single buckets hold more than a
    part's share. Together they are all buckets; none where there would be one. `rows`: by bucket.
    """
    before = np.concatenate([[0], np.cumsum(rows)])
    share = before[-1] / parts
    edges = [0]
    for number in range(1, parts):
        low, high = np.searchsorted(before, share * (number + np.array([-_TOLERANCE, _TOLERANCE])))
        cut = _roundest(max(int(low), 1), int(high))
        if before[edges[-1]] < before[cut] < before[-1]:
            edges.append(cut)
    edges.append(len(rows))
    return tuple((first, stop - 1) for first, stop in pairwise(edges)) if len(edges) > 2 else ()


def _roundest(first: int, last: int) -> int:
    """The number of a range that the highest power of two divides: row groups end at such."""
    power = 1
    while -(-first // (2 * power)) * 2 * power <= last:
        power *= 2
    return -(-first // power) * power
