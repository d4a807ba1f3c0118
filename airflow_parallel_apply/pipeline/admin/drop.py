"""Removing a pipeline: at its target, at its source, and on request its log.

The target comes first, since it alone knows whether a run is alive; then the stream, which fills the source's disk; the
log last, which is the only copy of what the target has not applied. Each part may be gone already, or out of reach:
then the rest is removed all the same, and what is left is told with the command that removes it.
"""

from __future__ import annotations

import shlex
from contextlib import closing, suppress

from airflow_parallel_apply.pipeline.config import Endpoint, QueueEndpoint, default_slot
from airflow_parallel_apply.pipeline.copy.open import is_copying_between
from airflow_parallel_apply.pipeline.copy.protocol import NO_GENERATION
from airflow_parallel_apply.pipeline.errors import LeaseBusy, LogError, ParallelApplyError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.log.directory import LogDirectory
from airflow_parallel_apply.pipeline.log.identity import read_any_identity
from airflow_parallel_apply.pipeline.log.open import log_exists
from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry, forget_command, forget_reader, read_readers
from airflow_parallel_apply.pipeline.log.remove import remove_log
from airflow_parallel_apply.pipeline.model.finding import Side
from airflow_parallel_apply.pipeline.model.removal import Leftover, Removal
from airflow_parallel_apply.pipeline.run.pipeline_queue import is_in_target, open_pipeline_queue
from airflow_parallel_apply.pipeline.run.sessions import reader_entry
from airflow_parallel_apply.pipeline.source.open import source_connector
from airflow_parallel_apply.pipeline.store.open import remove_held
from airflow_parallel_apply.pipeline.target.open import target_connector
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.queue.model import QueueError, QueueMisconfigured

_ANY_GENERATION = 2**62


def drop_pipeline(
    pipeline: str,
    source: Endpoint,
    target: Endpoint,
    *,
    slot: str = "",
    queue: QueueEndpoint | None = None,
    log_url: str | None = None,
    with_log: bool = False,
    force: bool = False,
) -> Removal:
    """`LeaseBusy` while a run is alive, unless `force`: nothing is removed then. `with_log` needs `log_url`. `queue`:
    where it has its tasks, if not in the target. `slot`: its stream, if not its own; one whose log others read stays.
    """
    stream = slot or default_slot(pipeline)
    if log_url is not None:
        # Refuse a router's before anything is removed.
        LogDirectory.from_url(log_url)
    removal, is_away = _drop_target(pipeline, source, target, queue, log_url, force=force)
    if log_url is None:
        if slot:
            what = f"stream {slot}, whose log other pipelines may read: run this again with --log-url"
            return removal + Removal(left=(Leftover(side=Side.SOURCE, what=what),))
        removal += _drop_source(stream, source, force=force)
        return removal + _left("the log's directory, if there is one: --log-url says where")
    if not log_exists(log_url):
        return removal + _drop_source(stream, source, force=force)
    if not is_away:
        removal += _drop_held(log_url, pipeline)
    root = LogDirectory.from_url(log_url).root
    if (logged := _logged_stream(log_url)) not in (None, stream):
        what = f"the log at {root}, which is that of stream {logged}, not of {stream}: --slot says which it is"
        return removal + _drop_source(stream, source, force=force) + _left(what)
    try:
        others = _other_readers(pipeline, log_url, is_away=is_away)
    except LogError as error:
        return removal + _left(
            f"the log at {root} and its stream, which others may read: {error.message}; remove that file unless it is "
            "a living reader's, and run this once more"
        )
    for entry in others:
        removal += _left(
            f"the log at {root} and its stream, which pipeline {entry.pipeline} at {entry.place} reads; if that never "
            "reads it again, as under a former name or on a server that is gone, forget it, and run this once more",
            forget_command(log_url, entry),
        )
    if others:
        return removal
    removal += _drop_source(stream, source, force=force)
    return removal + _drop_log(stream, log_url, with_log=with_log and not removal.left)


def _drop_target(
    pipeline: str,
    source: Endpoint,
    target: Endpoint,
    queue: QueueEndpoint | None,
    log_url: str | None,
    *,
    force: bool,
) -> tuple[Removal, bool]:
    """Remove the pipeline from the target. Return what was removed, and whether the target is away. Errors:
    `LeaseBusy`.
    """
    try:
        with closing(open_pipeline(target, pipeline)) as writing:
            state = writing.ledger.state()
            if not force and is_copying_between(source, target, pipeline):
                raise LeaseBusy(
                    f"a first run of pipeline {pipeline}, or parallel-apply prepare, is copying the source's rows",
                    hint="Stop it first: mark the run as failed, or interrupt the command. Or use --force.",
                    generation=NO_GENERATION,
                )
            removal = writing.drop(force=force)
            if writing.ledger.is_installed() and (state is None or is_in_target(state)):
                # Without tables there are no tasks.
                with suppress(QueueMisconfigured):
                    _drop_tasks(writing.target, target, None, pipeline)
            if queue is not None:
                removal += _drop_tasks_elsewhere(writing.target, target, queue, pipeline)
            if state is not None and state.queue and (queue is None or queue.place != state.queue):
                what = f"tasks in the queue {state.queue}: run this again with --queue"
                removal += Removal(left=(Leftover(side=Side.QUEUE, what=what),))
            if log_url is not None and log_exists(log_url):
                forget_reader(log_url, reader_entry(writing.target, target, pipeline))
    except LeaseBusy:
        raise
    except (ParallelApplyError, QueueError) as error:
        return _unreachable(Side.TARGET, error, target_connector(target).drop_commands(pipeline)), True
    return removal, False


def _logged_stream(log_url: str) -> str | None:
    """The stream that a log is of; None where its identity is damaged."""
    try:
        return read_any_identity(LogDirectory.from_url(log_url)).stream
    except LogError:
        return None


def _other_readers(pipeline: str, log_url: str, *, is_away: bool) -> tuple[LogReaderEntry, ...]:
    """Return the readers of the log besides a pipeline that is signed off, or whose target is away: in that case the
    only reader of its name is the pipeline itself.
    """
    entries = read_readers(log_url)
    namesakes = [entry for entry in entries if entry.pipeline == pipeline]
    own = namesakes if is_away and len(namesakes) == 1 else []
    return tuple(entry for entry in entries if entry not in own)


def _drop_tasks(writing: Target, target: Endpoint, queue: QueueEndpoint | None, pipeline: str) -> None:
    with closing(open_pipeline_queue(writing, target, queue, pipeline)) as tasks:
        tasks.sweep(below=_ANY_GENERATION)


def _drop_tasks_elsewhere(writing: Target, target: Endpoint, queue: QueueEndpoint, pipeline: str) -> Removal:
    try:
        _drop_tasks(writing, target, queue, pipeline)
    except QueueError as error:
        return Removal(left=(Leftover(side=Side.QUEUE, what=f"tasks in the queue {queue.place}: {error}"),))
    return Removal(done=(f"removed its tasks from the queue {queue.place}",))


def _drop_source(stream: str, source: Endpoint, *, force: bool) -> Removal:
    connector = source_connector(source)
    try:
        return connector.drop(source, stream, force=force)
    except ParallelApplyError as error:
        return _unreachable(Side.SOURCE, error, connector.drop_commands(stream))


def _drop_held(log_url: str, pipeline: str) -> Removal:
    root = LogDirectory.from_url(log_url).root
    try:
        removed = remove_held(root, pipeline)
    except LogError as error:
        return _left(error.message)
    return Removal(done=(f"removed what its store made from the log at {root}",) if removed else ())


def _drop_log(stream: str, log_url: str, *, with_log: bool) -> Removal:
    root = LogDirectory.from_url(log_url).root
    command = f"rm -r {shlex.quote(str(root))}"
    if not with_log:
        return _left(f"the log at {root}", command)
    try:
        remove_log(log_url, stream=stream)
    except LogError as error:
        return _left(f"the log at {root}: {error.message}", command)
    return Removal(done=(f"removed the log at {root}",))


def _left(what: str, command: str = "") -> Removal:
    return Removal(left=(Leftover(side=Side.LOG, what=what, command=command),))


def _unreachable(side: Side, error: Exception, commands: tuple[str, ...]) -> Removal:
    what = error.message if isinstance(error, ParallelApplyError) else str(error)
    return Removal(left=tuple(Leftover(side=side, what=what, command=command) for command in commands))
