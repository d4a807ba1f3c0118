"""Removing from a log what nobody needs any more, and with it the plans of what was applied.

Law 7: a segment goes only when every pipeline that reads the log has its transactions in its target, on that target's
disk. So every registered reader is asked first, and one that cannot be asked is a refusal, never a guess::

    ask all readers ──▶ least settled position ──▶ one manifest without the segments ──▶ ten minutes later: their files

A crash before the manifest changes nothing; after it the files are any later writer's to remove. A pipeline that begins
to read meanwhile finds the log purged, and is refused when it opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.open import open_reader, open_writer
from airflow_parallel_apply.pipeline.log.protocol import Segment, WriterFenced
from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry, read_readers, reader_path
from airflow_parallel_apply.pipeline.model.position import low_watermark
from airflow_parallel_apply.pipeline.run.pipeline_queue import is_in_target, open_pipeline_queue
from airflow_parallel_apply.pipeline.target.open import open_target

_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """`needed_seqno`: up to it every reader has everything. `purged_seqno`: up to it the log has nothing any more.
    `file_bytes`: of the row files that will go.
    """

    needed_seqno: int
    purged_seqno: int
    segments: int
    file_bytes: int
    epochs: int

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A reader that answered."""

    session: PipelineSession
    endpoint: Endpoint
    entry: LogReaderEntry
    generation: int
    seqno: int
    is_queue_there: bool
    """In the target's database; elsewhere runs alone tidy up."""


def purge_log(
    log_url: str, targets: Sequence[Endpoint], *, keep_transactions: int = 0, older_than: datetime | None = None
) -> Purged:
    """Purge below the positions of all readers; of these keep the last `keep_transactions` of the log, and what was
    committed at `older_than` or later. Safe beside runs and captures.

    `ConfigurationError` names a reader that none of `targets` is, or that its target does not know; `Unavailable` a
    target that does not answer. Nothing is removed then.
    """
    log = open_reader(log_url)
    with ExitStack() as stack:
        asked = _ask(log_url, log.identity.log_id, targets, stack)
        settled = min(one.seqno for one in asked)
        through = min(settled, log.state().last_seqno - keep_transactions)
        gone = _purge_segments(log_url, through, older_than)
        purged = log.state().purged_seqno
        epochs = 0
        for one in asked:
            # Where segments stay for a while, what the plan says of them is still told by `status`.
            epochs += one.session.ledger.purge_plan(min(purged, one.seqno))
            if one.is_queue_there:
                with closing(open_pipeline_queue(one.session.target, one.endpoint, None, one.entry.pipeline)) as tasks:
                    tasks.sweep(below=one.generation)
    return Purged(
        needed_seqno=settled,
        purged_seqno=purged,
        segments=len(gone),
        file_bytes=sum(segment.file_bytes for segment in gone),
        epochs=epochs,
    )


def _ask(log_url: str, log_id: str, targets: Sequence[Endpoint], stack: ExitStack) -> list[_Asked]:
    entries = read_readers(log_url)
    if not entries:
        raise ConfigurationError(
            f"no pipeline is registered at the log {log_url}, so nobody says what is needed",
            op="purge",
            hint="Its next run registers it; purge afterwards.",
        )
    found = {}
    for endpoint in targets:
        with closing(open_target(endpoint, entries[0].pipeline)) as looking:
            identity = looking.identity()
        found[(identity.system_identifier, identity.database)] = endpoint
    asked = []
    for entry in entries:
        where = (entry.system_identifier, entry.database)
        if where not in found:
            raise _unasked(log_url, entry, "was not named", "Name its target, too: --other-target.")
        endpoint = found[where]
        session = stack.enter_context(closing(open_pipeline(endpoint, entry.pipeline)))
        state = session.ledger.state()
        if state is None or state.log_id != log_id:
            raise _unasked(log_url, entry, "does not know this log any more", "")
        seqno = low_watermark(session.target.positions(durable=True))
        asked.append(
            _Asked(
                session=session,
                endpoint=endpoint,
                entry=entry,
                generation=state.generation,
                seqno=seqno,
                is_queue_there=is_in_target(state),
            )
        )
    return asked


def _unasked(log_url: str, entry: LogReaderEntry, what: str, hint: str) -> ConfigurationError:
    forget = f"If it will never read this log again: rm {reader_path(log_url, entry)}"
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
