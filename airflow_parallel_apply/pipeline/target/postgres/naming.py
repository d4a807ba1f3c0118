"""Names that show to whom sessions and staging tables belong.

PostgreSQL cuts names at 63 bytes, so they contain pipeline and token as digests of fixed length. A session's name has
four parts between colons, a staging table's six between underscores: the third is the scope, the fourth the claim. A
scope is one channel, `all` channels, or a group's part of either, as `g7x3` and `g7xall` of group 7; `b7x3` and
`b7xall` where it may become a branch of the group's commit.
"""

from __future__ import annotations

import hashlib
from typing import Final

SCHEMA: Final = "parallel_apply"
"""The schema of the pipelines' own tables, and of their staging."""

ALL_CHANNELS: Final = "all"
"""The scope of whoever holds all channels."""

_PIPELINE_LETTERS: Final = 8
_CLAIM_LETTERS: Final = 12


def pipeline_tag(pipeline: str) -> str:
    """Eight hexadecimal digits."""
    return _digest(pipeline, _PIPELINE_LETTERS)


def claim_tag(token: str) -> str:
    """Twelve hexadecimal digits."""
    return _digest(token, _CLAIM_LETTERS)


def scope_tag(channel: int | None, group: int | None = None, *, prepares: bool = False) -> str:
    """At most 15 letters."""
    channels = ALL_CHANNELS if channel is None else str(channel)
    return channels if group is None else f"{'b' if prepares else 'g'}{group}x{channels}"


def holder_session(
    pipeline: str, channel: int | None, token: str, *, group: int | None = None, prepares: bool = False
) -> str:
    """`application_name` of every session that works under a claim; `Target.take` ends those of other tokens. `group`:
    of one that stages for it, or `prepares`.
    """
    return f"pa:{pipeline_tag(pipeline)}:{scope_tag(channel, group, prepares=prepares)}:{claim_tag(token)}"


def idle_session(pipeline: str) -> str:
    """`application_name` of a session that holds no channel; nobody ends it."""
    return f"pa:{pipeline_tag(pipeline)}"


def staging_prefix(pipeline: str) -> str:
    """The prefix of all staging of a pipeline."""
    return f"s_{pipeline_tag(pipeline)}_"


def staging_table(
    pipeline: str, channel: int | None, token: str, attempt: str, relation_id: int, *, group: int | None = None
) -> str:
    """Unqualified, at most 63 bytes. `attempt`: unique for each attempt of each Spark task of the claim."""
    return (
        f"{staging_prefix(pipeline)}{scope_tag(channel, group)}_{claim_tag(token)}"
        f"_{_digest(attempt, _CLAIM_LETTERS)}_{relation_id}"
    )


def branch_prefix(pipeline: str) -> str:
    """The prefix of the names of a pipeline's prepared branches."""
    return f"pa:{pipeline_tag(pipeline)}:"


def branch_name(task_prefix: str, attempt: str) -> str:
    """The name under which an attempt of a Spark task prepares its transaction."""
    return f"{task_prefix}{_digest(attempt, _CLAIM_LETTERS)}"


def job_prefix(holder: str, job: str) -> str:
    """The prefix of the names that a Spark job's tasks prepare under. `holder`: their session's, whose scope is a
    group's.
    """
    return f"{holder}:{_digest(job, _CLAIM_LETTERS)}:"


def scope_of_branch(name: str) -> str:
    """The scope of the session that prepared a branch."""
    return name.split(":")[2]


def claim_of_branch(name: str) -> str:
    """The claim of the session that prepared a branch."""
    return name.split(":")[3]


def group_of_branch(name: str) -> int:
    """The group that a branch is of."""
    return int(scope_of_branch(name)[1:].partition("x")[0])


def _digest(text: str, letters: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:letters]
