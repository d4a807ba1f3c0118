"""The order of a first run, for any source: `begin`.

::

    tables held ─▶ stream ─▶ listed, described, registered ─▶ copy ─▶ log, captured to the snapshot ─▶ recorded as begun

A copy that goes into the log comes behind the log's beginning, and before the record.

Nothing is captured before the log is there, and a stream that was not recorded as begun is made anew with whatever it
holds: so a crash, or a copy that fails, leaves nothing that a later run would take for the beginning of a history.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from airflow_parallel_apply.pipeline.capture.copying import copy_into_log
from airflow_parallel_apply.pipeline.capture.loop import note
from airflow_parallel_apply.pipeline.capture.values import IntoLog
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.beginning import holds_nothing_captured
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogIdentity, ResumePoint
from airflow_parallel_apply.pipeline.log.writing import create_log, open_writer
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT, Relation
from airflow_parallel_apply.pipeline.source.protocol import Preparing, Snapshot, SourceChanged, Stream


def begin(
    preparing: Preparing,
    stream: Stream,
    config: PipelineConfig,
    *,
    copy: Callable[[Snapshot], None] | IntoLog | None,
    checked: Sequence[Relation] | None,
) -> tuple[str, tuple[str, ...]]:
    """The log's id, and what was made, in sentences for the user. Errors: the source's, the log's, those of `copy`."""
    url = config.log_url
    begins_empty = config.start is Start.EMPTY or isinstance(copy, IntoLog)
    identity = open_reader(url).identity if log_exists(url) else _new_identity(stream, begins_empty=begins_empty)
    if identity.begins_empty not in (begins_empty, None):
        raise LogError(
            f"{url} is the log of a first run with another start, which did not come to its end",
            op="prepare",
            pipeline=config.pipeline,
            hint=f"Use that start, or remove the directory {url}: it holds no change.",
        )
    with preparing.begin(identity.log_id) as snapshot:
        if checked is not None:
            _require_as_checked(snapshot, checked, stream, config)
        made = [*snapshot.made, f"Created log {identity.log_id} at {url}."]
        if copy is not None and not isinstance(copy, IntoLog):
            copy(snapshot)
        begin_log(url, identity, snapshot)
        if isinstance(copy, IntoLog):
            made.append(copy_into_log(url, preparing, snapshot, copy))
    return identity.log_id, tuple(made)


def begin_log(url: str, identity: LogIdentity, snapshot: Snapshot) -> None:
    """The log goes on from the snapshot, with its definitions. What an attempt before copied into it goes. Errors:
    `LogError`.
    """
    if not log_exists(url):
        create_log(url, identity)
    elif not holds_nothing_captured(open_reader(url)):
        raise LogError(f"{url} holds changes of a stream that has not begun", op="prepare", hint="Use a new log_url.")
    writer = open_writer(url, expected=identity)
    writer.empty()
    for relation in snapshot.relations:
        writer.relation_id(relation)
    note(writer, snapshot.look)
    writer.commit(snapshot.offset, ResumePoint(offset=snapshot.offset))


def _new_identity(stream: Stream, *, begins_empty: bool) -> LogIdentity:
    return LogIdentity(
        log_id=uuid.uuid4().hex,
        server=stream.server,
        database=stream.database,
        stream=stream.name,
        selection=stream.selection,
        bucket_count=BUCKET_COUNT,
        created=datetime.now(UTC),
        begins_empty=begins_empty,
    )


def _require_as_checked(
    snapshot: Snapshot, checked: Sequence[Relation], stream: Stream, config: PipelineConfig
) -> None:
    """Require the definitions that the target was compared with. Errors: `SourceChanged`."""
    known = {relation.name: relation for relation in checked}
    found = {relation.name: relation for relation in snapshot.relations}
    changed = {name for name in {*known, *found} if known.get(name) != found.get(name)}
    if changed:
        raise SourceChanged.in_first_run(changed, place=stream.place, pipeline=config.pipeline)
