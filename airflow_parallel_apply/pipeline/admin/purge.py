"""Removing from a log what nobody needs any more, and with it the plans of what was applied.

Law 7: a segment goes only when every pipeline that reads the log has its transactions in its target, on that target's
disk. So the target of every registered reader is asked first, and one that cannot be asked is a refusal, never a guess,
since nothing is known of what it needs::

    ask all targets ──▶ least settled position ──▶ one manifest without the segments ──▶ ten minutes later: their files

A reader's ledger is needed for its plan alone: that is purged where the ledger is the one that the endpoint names, and
else stays for a purge that names it.

A crash before the manifest changes nothing; after it the files are any later writer's to remove. A pipeline that begins
to read meanwhile finds the log purged, and is refused when it opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import Segment, WriterFenced
from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry, forget_command, read_readers
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.run.pipeline_queue import is_in_target, open_pipeline_queue
from airflow_parallel_apply.pipeline.target.open import open_target

_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """`needed_seqno`: up to it every reader has everything. `purged_seqno`: up to it the log has nothing any more.
    `file_bytes`: of the row files that will go. `plans_kept`: pipelines, with their targets' places, whose plans stay
    as they are, since their ledgers were not named.
    """

    needed_seqno: int
    purged_seqno: int
    segments: int
    file_bytes: int
    epochs: int
    plans_kept: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A reader whose target answered: all its channels have committed `seqno` there, on disk."""

    endpoint: Endpoint
    entry: LogReaderEntry
    seqno: int


def purge_log(
    log_url: str, targets: Sequence[Endpoint], *, keep_transactions: int = 0, older_than: datetime | None = None
) -> Purged:
    """Purge below the positions of all readers; of these keep the last `keep_transactions` of the log, and what was
    committed at `older_than` or later. Safe beside runs and captures.

    `ConfigurationError` names a reader that none of `targets` is, or that its target does not know; `Unavailable` a
    target that does not answer. Nothing is removed then.
    """
    log = open_reader(log_url)
    asked = _ask(log_url, log.identity.log_id, targets)
    settled = min(one.seqno for one in asked)
    through = min(settled, log.state().last_seqno - keep_transactions)
    gone = _purge_segments(log_url, through, older_than)
    purged = log.state().purged_seqno
    epochs = {one.entry: _purge_plan(one, purged) for one in asked}
    return Purged(
        needed_seqno=settled,
        purged_seqno=purged,
        segments=len(gone),
        file_bytes=sum(segment.file_bytes for segment in gone),
        epochs=sum(count or 0 for count in epochs.values()),
        plans_kept=tuple(f"{entry.pipeline} at {entry.place}" for entry, count in epochs.items() if count is None),
    )


def _ask(log_url: str, log_id: str, targets: Sequence[Endpoint]) -> list[_Asked]:
    entries = read_readers(log_url)
    if not entries:
        raise ConfigurationError(
            f"no pipeline is registered at the log {log_url}, so nothing says what is still needed",
            op="purge",
            hint="Its next run registers it; purge afterwards.",
        )
    found = {}
    for endpoint in targets:
        with closing(open_target(endpoint, entries[0].pipeline)) as looking:
            identity = looking.identity()
        found[(identity.server, identity.database)] = endpoint
    asked = []
    for entry in entries:
        where = (entry.server, entry.database)
        if where not in found:
            raise _unasked(log_url, entry, "was not named", "Name its target, too: --other-target.")
        with closing(open_target(found[where], entry.pipeline)) as target:
            if target.log_id() != log_id:
                raise _unasked(log_url, entry, "does not know this log any more", "")
            seqno = low_watermark(target.positions(durable=True))
        asked.append(_Asked(endpoint=found[where], entry=entry, seqno=seqno))
    return asked


def _purge_plan(one: _Asked, purged_seqno: int) -> int | None:
    """Forget the epochs of what was purged, and tasks of former generations where the queue is with the ledger. Where
    segments stay for a while, what the plan says of them is still told by `status`. None where the pipeline's ledger is
    not the one that the endpoint names.
    """
    try:
        with closing(open_pipeline(one.endpoint, one.entry.pipeline)) as session:
            state = session.ledger.state()
            if state is None:
                return None
            epochs = session.ledger.purge_plan(min(purged_seqno, one.seqno))
            # A queue elsewhere is tidied up by runs alone.
            if is_in_target(state):
                with closing(open_pipeline_queue(session.target, one.endpoint, None, one.entry.pipeline)) as tasks:
                    tasks.sweep(below=state.generation)
            return epochs
    except ConfigurationError:
        return None


def _unasked(log_url: str, entry: LogReaderEntry, what: str, hint: str) -> ConfigurationError:
    forget = f"If it will never read this log again: {forget_command(log_url, entry)}"
    return ConfigurationError(
        f"pipeline {entry.pipeline} at {entry.place} reads this log and {what}: what it needs is not known",
        op="purge",
        pipeline=entry.pipeline,
        hint=f"{hint} {forget}".strip(),
    )


def _purge_segments(log_url: str, through: int, older_than: datetime | None) -> tuple[Segment, ...]:
    """A capture may publish in between; then the same is done to the version that it made."""
    for _ in range(_TRIES):
        try:
            return open_writer(log_url).purge(through, older_than=older_than)
        except WriterFenced:
            continue
    raise Unavailable(
        f"captures kept publishing to the log {log_url} meanwhile", op="purge", hint="Try again in a moment."
    )
