"""Checks, and makes what is missing, before a run captures: `prepare`, for any source.

The first run begins stream and log together (`first_run`). Every other one finds them there: the source proves that the
log gets all that happened to its tables, the log keeps what they are now, and tables that are new are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.capture.first_run import begin
from airflow_parallel_apply.pipeline.capture.loop import note
from airflow_parallel_apply.pipeline.capture.overtaken import Overtaken, unless_overtaken
from airflow_parallel_apply.pipeline.capture.values import IntoLog, Prepared
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import START_ANEW, ConfigurationError, SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.open import open_reader, reader_if_there
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.source.protocol import Look, Preparing, Snapshot, Source

_ATTEMPTS: Final = 20


def prepare(
    source: Source,
    config: PipelineConfig,
    copy: Callable[[Snapshot], None] | IntoLog | None = None,
    *,
    checked: Sequence[Relation] | None = None,
    is_known: bool = False,
) -> Prepared:
    """See `Capture.prepare`. Idempotent, from wherever an earlier one ended."""
    url = config.log_url
    with source.preparing() as preparing:
        stream = preparing.stream(partial(reader_if_there, url))
        if stream.has_begun:
            log_id, created = open_reader(url).identity.log_id, _go_on(preparing, url)
        elif is_known:
            raise SourceError(
                f"the source {stream.place} has lost that the first run came to its end, as one that was restored to a "
                "moment before that: changes may be missing",
                op="prepare",
                pipeline=config.pipeline,
                hint=START_ANEW,
            )
        else:
            if config.start is Start.COPY and copy is None:
                raise ConfigurationError(
                    f"the source {stream.place} is to be copied, and this step cannot copy",
                    op="prepare",
                    pipeline=config.pipeline,
                    hint="Run the task capture, or use another start.",
                )
            log_id, created = begin(preparing, stream, config, copy=copy, checked=checked)
    return Prepared(
        log_id=log_id,
        stream=stream.name,
        selection=stream.selection,
        tables=stream.tables,
        created=created,
        warnings=stream.warnings,
    )


def _go_on(preparing: Preparing, url: str) -> tuple[str, ...]:
    _settle(preparing, url)
    made = preparing.follow(open_reader(url).state(), partial(_keep, url))
    if made:
        _settle(preparing, url)
    return made


def _settle(preparing: Preparing, url: str) -> None:
    """The log keeps what the tables are now."""
    _keep(url, preparing.settle)


def _keep(url: str, look: Callable[[LogState], Look]) -> None:
    """The log keeps what a look tells. Captures go on meanwhile, which need not prepare."""
    for _ in range(_ATTEMPTS):
        with suppress(Overtaken):
            _try_to_keep(url, look)
            return
    raise Unavailable("other captures go on with the log all the time", op="prepare", hint="It is tried again.")


def _try_to_keep(url: str, look: Callable[[LogState], Look]) -> None:
    writer = open_writer(url)
    with unless_overtaken("prepare", url, lambda: writer.state().place):
        note(writer, look(writer.state()))
        writer.commit(writer.state().captured_offset)
