"""Names of staging tables, which tell whose they are: the pipeline, its generation, a scope, a claim and an attempt.

A name has at most 64 letters, so pipeline, claim and attempt go in as digests of fixed length. A scope is one channel,
`all` of them, or a group's part of either, as `g7x3` and `g7xall` of group 7.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

DATABASE: Final = "parallel_apply"
"""The database of the pipelines' own tables, and of their staging."""

_PIPELINE_LETTERS: Final = 8
_CLAIM_LETTERS: Final = 10
_ALL: Final = "all"
_NAME: Final = re.compile(r"s_[0-9a-f]+_(\d+)_(?:g(\d+)x)?(all|\d+)_([0-9a-f]+)_[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingOwner:
    """The owner of a staging table. `claim`: a digest. `group` None: the claim's own."""

    generation: int
    channel: int | None
    claim: str
    group: int | None = None


def claim_tag(token: str) -> str:
    """Ten hexadecimal digits."""
    return _digest(token, _CLAIM_LETTERS)


def staging_prefix(pipeline: str) -> str:
    """The beginning of the names of all staging of a pipeline."""
    return f"s_{_digest(pipeline, _PIPELINE_LETTERS)}_"


def staging_table(pipeline: str, owner: StagingOwner, attempt: str, relation_id: int) -> str:
    """Unqualified. `attempt`: unique for each attempt of each Spark task of the claim."""
    channels = _ALL if owner.channel is None else str(owner.channel)
    scope = channels if owner.group is None else f"g{owner.group}x{channels}"
    place = _digest(f"{attempt}/{relation_id}", _CLAIM_LETTERS)
    return f"{staging_prefix(pipeline)}{owner.generation}_{scope}_{owner.claim}_{place}"


def owner_of(name: str) -> StagingOwner | None:
    """Inverse of `staging_table`, as far as the name tells; None of a table that is no staging."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    generation, group, channels, claim = found.groups()
    return StagingOwner(
        generation=int(generation),
        channel=None if channels == _ALL else int(channels),
        claim=claim,
        group=None if group is None else int(group),
    )


def _digest(text: str, letters: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:letters]
