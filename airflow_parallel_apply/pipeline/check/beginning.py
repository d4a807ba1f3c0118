"""Check that a target that has applied nothing of a log may begin with it: it has to hold what the source held there.

A log that was just made begins with what `start` says. One that is there already, since another pipeline reads it, the
target was replaced, or an earlier try ended before its target knew of it, begins where it was made:

| start | may begin at |
|---|---|
| empty | the beginning of a log that was made with start=empty, as long as nothing of it is purged |
| equal | a log without a transaction, of a source without changes since |
| copy | no log that others read, or that has a transaction: its copy would be of a later moment |
| copy, into the log | as empty: all rows are in the log, from whatever first run |

A try that ended tells nothing of the target: it may be another one by now, or `start` another word.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import suppress

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogPlace, LogReader
from airflow_parallel_apply.pipeline.log.readers import read_readers
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side
from airflow_parallel_apply.pipeline.target.protocol import Target


def beginning_findings(
    config: PipelineConfig, target: Target, has_changes: Callable[[LogPlace], bool], *, copies_into_log: bool
) -> tuple[Finding, ...]:
    """Check a pipeline that its target does not know yet. `has_changes`: whether the source has changes that the log
    lacks. `copies_into_log`: where a copy's rows go. Errors: the log's, the target's, those of `has_changes`.
    """
    if not log_exists(config.log_url):
        return ()
    log = open_reader(config.log_url)
    identity = target.identity()
    own = config.pipeline, identity.server, identity.database
    is_shared = any(entry.key != own for entry in read_readers(config.log_url))
    needs_all = config.start is Start.EMPTY or (config.start is Start.COPY and copies_into_log)
    what = _trouble(Start.EMPTY if needs_all else config.start, log, has_changes, is_shared=is_shared)
    if what is None:
        return ()
    return (
        Finding(
            severity=Severity.ERROR,
            side=Side.LOG,
            where=config.log_url,
            what=f"log {log.identity.log_id} is there already, and {what}",
            note="Give this pipeline a log_url and a slot of its own. Later than at its beginning a log is joined with "
            "start=empty alone, if all rows are in it: it was made so too, or begins with a copy, and is not purged."
            if is_shared
            else f"Start anew: parallel-apply drop --pipeline {config.pipeline}"
            f"{f' --slot {config.slot}' if config.slot else ''} --log-url {shlex.quote(config.log_url)} --log; then "
            "run with start=copy into empty tables, or with start=equal while nobody writes to the source.",
        ),
    )


def _trouble(start: Start, log: LogReader, has_changes: Callable[[LogPlace], bool], *, is_shared: bool) -> str | None:
    state = log.state()
    is_at_beginning = state.last_seqno == NO_SEQNO
    match start:
        case Start.EMPTY if not log.identity.begins_empty:
            return "the source's tables may have had rows when it began, which this target would lack"
        case Start.EMPTY if state.purged_seqno != NO_SEQNO:
            return f"it begins with seqno {state.purged_seqno + 1}: what was before is purged"
        case Start.EQUAL if not is_at_beginning or _has_changes(has_changes, state.place, is_shared=is_shared):
            return "the source has changed since it began: a target that is equal now would get these changes again"
        case Start.COPY if is_shared or not is_at_beginning:
            return "a copy that is made now would be of a later moment than its beginning"
        case _:
            return None


def _has_changes(has_changes: Callable[[LogPlace], bool], place: LogPlace, *, is_shared: bool) -> bool:
    if is_shared:
        return has_changes(place)
    # An earlier try may not have come to its end: then the slot is made anew. What else it lacks is told later.
    with suppress(SourceError):
        return has_changes(place)
    return False
