"""Names by which sessions and staging tables tell whose they are.

PostgreSQL cuts names at 63 bytes, so pipeline and token go in as digests of fixed length. A session's name has four
parts between colons, a staging table's six between underscores: the third is the channel, the fourth the claim.
"""

from __future__ import annotations

import hashlib
from typing import Final

DEFAULT_SCHEMA: Final = "parallel_apply"
"""The schema of the pipelines' own tables, and of their staging."""

ALL_CHANNELS: Final = "all"
"""Stands for the channel in the names of a serial unit."""

_PIPELINE_LETTERS: Final = 8
_CLAIM_LETTERS: Final = 12


def pipeline_tag(pipeline: str) -> str:
    """Eight hexadecimal digits."""
    return _digest(pipeline, _PIPELINE_LETTERS)


def claim_tag(token: str) -> str:
    """Twelve hexadecimal digits."""
    return _digest(token, _CLAIM_LETTERS)


def channel_tag(channel: int | None) -> str:
    """A number, or `ALL_CHANNELS` for a serial unit."""
    return ALL_CHANNELS if channel is None else str(channel)


def holder_session(pipeline: str, channel: int | None, token: str) -> str:
    """`application_name` of every session that works under a claim; `Target.take` ends those of other tokens."""
    return f"pa:{pipeline_tag(pipeline)}:{channel_tag(channel)}:{claim_tag(token)}"


def idle_session(pipeline: str) -> str:
    """`application_name` of a session that holds no channel; nobody ends it."""
    return f"pa:{pipeline_tag(pipeline)}"


def staging_table(pipeline: str, channel: int | None, token: str, attempt: str, relation_id: int) -> str:
    """Unqualified, at most 63 bytes. `attempt`: unique for each attempt of each Spark task of the claim."""
    return (
        f"s_{pipeline_tag(pipeline)}_{channel_tag(channel)}_{claim_tag(token)}"
        f"_{_digest(attempt, _CLAIM_LETTERS)}_{relation_id}"
    )


def _digest(text: str, letters: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:letters]
