"""Two captures of one log at once: the one that was overtaken is to be tried again, and has lost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogPlace, WriterFenced


class Overtaken(Unavailable):
    """Another capture went on with source and log: look at both again."""


@contextmanager
def unless_overtaken(op: str, log_url: str, known: Callable[[], LogPlace]) -> Iterator[None]:
    """Another run's capture, or that of a lane which stood still, may go on with log and source at any moment: then a
    source that let go of more than the place that we know is no loss. Errors: `Overtaken` in that case.
    """
    try:
        yield
    except (SourceError, WriterFenced) as error:
        log = open_reader(log_url)
        if isinstance(error, WriterFenced) or log.state().place != known():
            raise Overtaken(
                f"another capture went on with log {log.identity.log_id} meanwhile",
                op=op,
                hint="It is tried again from there.",
            ) from error
        raise
