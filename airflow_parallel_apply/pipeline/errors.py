"""Every error of the pipeline, in one tree, branched by what the caller may do.

::

    ParallelApplyError
    ├── RetryableError            the same call may succeed later: retry it, bounded
    │   ├── Unavailable           a database, Spark or a lock cannot be reached now
    │   │   ├── StagingLost       what was staged is not there any more: stage it again
    │   │   │   └── BranchesLost  what was prepared was rolled back, since something was in its way
    │   │   ├── SessionClosed     Spark's server has closed a session for good: open another one
    │   │   └── SourceInUse       another capture reads the source, which admits one at a time
    │   ├── Deadlock              sessions waited for each other's locks, and this one was rolled back
    │   ├── RoutingCancelled      the router let go of rows before they were read: the log has them
    │   ├── SpillFull             the router's disk is spent: the log has what it held
    │   └── LeaseBusy             another live run owns the pipeline, or goes first
    ├── OwnershipLost             somebody else goes on with this work: stop, change nothing
    └── FatalError                a person has to act; no position moved
        ├── GapAhead              what lies before a run's interval was not applied
        ├── ConfigurationError    a parameter, connection, privilege or installation is wrong
        ├── SourceError           the stream, its selection or the server does not fit the log
        ├── LogError              the log is corrupt, foreign, or not visible here
        ├── PlanError             the plan cannot be made: refused DDL, changed routing digest
        ├── EncodeError           rows cannot be encoded as asked
        └── TargetError           the target refuses a change, or lacks what it needs
            ├── DirectRefused     insertions cannot go straight into their tables: stage them
            └── Conflict          a row of another key is in the way: other channels may be what puts it there

The queue below this package has a root of its own, `QueueError`, since it is usable alone.
"""

from __future__ import annotations

import shlex
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

OWN_PIPELINE: Final = "--pipeline …"
"""The option of a command in a hint, where its raiser does not know the pipeline."""
START_ANEW: Final = (
    f"To start anew, run `parallel-apply drop {OWN_PIPELINE} --log-url …` with the log that it has, empty the target's "
    "tables (a feed begins in another place), and run with a new log_url and start=copy."
)
"""The hint that leads on where changes are missing for good."""
START_ELSEWHERE: Final = (
    f"To start anew, run `parallel-apply drop {OWN_PIPELINE} --log-url …` with the log that it has, and run with "
    "another place (a lake, a directory, or a prefix of topics), a new log_url and start=copy."
)
"""The same, where what is in the way stays in the place: a feed, or a table's own files."""


def with_pipeline(text: str, pipeline: str) -> str:
    """A hint, or a command of one, whose commands name the pipeline."""
    return text.replace(OWN_PIPELINE, f"--pipeline {shlex.quote(pipeline)}")


class ConflictReason(StrEnum):
    """The reason why a unit's channel cannot resolve a conflict alone."""

    UNIQUE = "unique"
    EXCLUSION = "exclusion"
    FOREIGN_KEY = "foreign key"
    DEADLOCK = "deadlock"


class ParallelApplyError(Exception):
    """Root. Says where it happened, what happened, and what to do about it, in one line. `pipeline`: empty where the
    message names it.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        pipeline: str | None = None,
        channel: int | None = None,
        seqno: int | None = None,
        table: str | None = None,
        column: str | None = None,
        hint: str | None = None,
        values: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.pipeline = pipeline
        self.channel = channel
        self.seqno = seqno
        self.table = table
        self.column = column
        self._hint = hint
        self.values = values
        """The values of rows, which the message leaves out and `telling` alone tells."""

    @property
    def hint(self) -> str | None:
        """The advice on what to do. Its commands name the pipeline as soon as that is known."""
        if self._hint is None or not self.pipeline:
            return self._hint
        return with_pipeline(self._hint, self.pipeline)

    @hint.setter
    def hint(self, hint: str | None) -> None:
        self._hint = hint

    def telling(self, values: bool) -> str:
        """The line, with the values of rows where whoever reads it may see them."""
        if not (values and self.values):
            return str(self)
        return f"{self} Values: {self.values}"

    def at(
        self,
        *,
        pipeline: str | None = None,
        channel: int | None = None,
        seqno: int | None = None,
    ) -> ParallelApplyError:
        """Fill in what the raiser could not know; what it did know stays."""
        self.pipeline = self.pipeline if self.pipeline is not None else pipeline
        self.channel = self.channel if self.channel is not None else channel
        self.seqno = self.seqno if self.seqno is not None else seqno
        return self

    def __str__(self) -> str:
        places = (
            ("op", self.op),
            ("pipeline", self.pipeline),
            ("channel", self.channel),
            ("seqno", self.seqno),
            ("table", self.table),
            ("column", self.column),
        )
        where = ", ".join(f"{name} {value}" for name, value in places if value not in (None, ""))
        text = f"{self.message} [{where}]" if where else self.message
        return f"{text} Hint: {self.hint}" if self.hint else text


class RetryableError(ParallelApplyError):
    """The same call may succeed later."""


class Unavailable(RetryableError):
    """A database, Spark or a lock cannot be reached now."""


class StagingLost(Unavailable):
    """Staged rows are not in the target any more, by its crash or since another holder dropped it: it is staged
    again.
    """


class BranchesLost(StagingLost):
    """The branches of a group were rolled back, since the target refused one, or one was in the way of another: the
    group is staged again, and not prepared.
    """


class SessionClosed(Unavailable):
    """Spark's server has closed the session, and its id stays dead: one with another id can be opened."""


class SourceInUse(Unavailable):
    """Another capture reads the source, or one that died a moment ago."""


class Deadlock(RetryableError):
    """Sessions waited for each other's locks, and the server rolled this one back."""


class RoutingCancelled(RetryableError):
    """The router let go of rows before they were read; the log has them."""


class SpillFull(RetryableError):
    """The disk that the router may use, or has, is spent. It lets go of what it held; the log has it."""


class LeaseBusy(RetryableError):
    """Another live run owns the pipeline, under `generation`; or others go first, which apply up to `reach_seqno`.
    `is_lapsed`: the owner's lease is over, and it is waited for nevertheless.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        generation: int | None = None,
        reach_seqno: int | None = None,
        is_lapsed: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.generation = generation
        self.reach_seqno = reach_seqno
        self.is_lapsed = is_lapsed


class OwnershipLost(ParallelApplyError):
    """A newer generation or claim goes on with this work; nothing of ours was committed."""


class FatalError(ParallelApplyError):
    """A person has to act; no position moved."""


class GapAhead(FatalError):
    """Transactions that nobody has applied lie before a run's interval: they are another interval's to apply.

    `since` is the commit time of the first of them, `until` that of the last one that is captured, `last_seqno` its
    number, `generation` that of the pipeline as it was seen.
    """

    def __init__(self, message: str, *, since: datetime, until: datetime, last_seqno: int, generation: int) -> None:
        super().__init__(message, op="open", hint="Run the intervals before it first.")
        self.since = since
        self.until = until
        self.last_seqno = last_seqno
        self.generation = generation


class ConfigurationError(FatalError):
    """A parameter, connection, privilege or installation is wrong."""


class SourceError(FatalError):
    """The stream, its selection or the server does not fit the log."""


class LogError(FatalError):
    """The log is corrupt, foreign, or not visible here."""


class PlanError(FatalError):
    """The plan cannot be made."""


class EncodeError(FatalError):
    """Rows cannot be encoded as asked."""


class TargetError(FatalError):
    """The target refuses a change, or lacks what it needs."""


class DirectRefused(TargetError):
    """A unit that was to be committed where it is loaded cannot be: nothing of it is there, and it is to be staged."""


class Conflict(TargetError):
    """A row of another key is in the way of a change, or a row that it refers to is missing."""

    def __init__(self, message: str, *, reason: ConflictReason = ConflictReason.UNIQUE, **places: Any) -> None:
        super().__init__(message, **places)
        self.reason = reason
