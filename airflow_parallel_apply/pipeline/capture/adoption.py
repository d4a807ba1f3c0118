"""Another server in the place of a log's source: the source proves itself, and the log records it. And what a person
vouches for of its tables.

The log comes first: a crash in between leaves a source that still proves itself by what it proved itself with before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airflow_parallel_apply.pipeline.capture.loop import note
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.log.open import reader_if_there
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.source.abilities import Adoption
from airflow_parallel_apply.pipeline.source.open import open_adopting


def adopt_source(endpoint: Endpoint, config: PipelineConfig) -> Adoption:
    """Record the server as the log's source. Does nothing where it is that already, but for the proof.

    Errors: `SourceError` for what the server lacks, `LogError`, `ConfigurationError`, `Unavailable`; `WriterFenced`
    when a capture went on meanwhile. Nothing is changed by any of them.
    """
    with open_adopting(endpoint, config, partial(reader_if_there, config.log_url), op="adopt-source") as adopting:
        writer = open_writer(config.log_url)
        adopted = adopting.adopt(writer.state())
        if adopted.adoption.is_new:
            writer.release(*adopted.released)
            writer.adopt(adopted.adoption.server)
            note(writer, adopted.look)
            writer.commit(writer.state().captured_offset)
    return adopted.adoption


def release_source(endpoint: Endpoint, config: PipelineConfig) -> Adoption:
    """Let the source go up to its end, before the server is upgraded, and record the place in the log.

    Errors: `SourceError` while the log lacks a followed change; those of `adopt_source`.
    """
    with open_adopting(endpoint, config, partial(reader_if_there, config.log_url), op="adopt-source") as adopting:
        writer = open_writer(config.log_url)
        adopted = adopting.release(writer.state())
        note(writer, adopted.look)
        writer.release(*adopted.released)
        writer.commit(writer.state().captured_offset)
        return adopting.let_go(adopted)


def vouch_for(endpoint: Endpoint, config: PipelineConfig, tables: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Record that these tables' older rows have the values that the log tells; says what was in doubt. Errors: those of
    `adopt_source`.
    """
    with open_adopting(endpoint, config, partial(reader_if_there, config.log_url), op="vouch") as adopting:
        writer = open_writer(config.log_url)
        vouched = adopting.vouch(writer.state(), tables)
        note(writer, vouched.look)
        writer.commit(writer.state().captured_offset)
    return vouched.doubts
