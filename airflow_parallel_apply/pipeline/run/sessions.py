"""A step's identity towards the queue, and its way to open ledger and target."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Final
from uuid import uuid4

from airflow_parallel_apply.pipeline.apply.ownership import generation_over, require_pipeline
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import PipelineState, RunBounds
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry
from airflow_parallel_apply.pipeline.run.values import OpenedRun
from airflow_parallel_apply.pipeline.target.protocol import Target

HANDOVER_LEASE: Final = timedelta(minutes=2)
"""Bridges the time from `open` to the first lane, and from the last one to `close`: only another run's patience, never
correctness, depends on it.
"""

OWNER_PATIENCE: Final = timedelta(hours=1)
"""So long after the end of its lease an owner keeps the pipeline if its run is known to go on: its tasks wait for
slots, or for a retry. Behind that it is taken to be stuck, and the next run goes ahead.
"""


def open_session(endpoint: Endpoint, config: PipelineConfig) -> PipelineSession:
    """A session that can apply, since it knows the log."""
    return open_pipeline(endpoint, config.pipeline, log_url=config.log_url)


def bring_up_to_date(session: PipelineSession) -> None:
    """Bring the tables of ledger and target to this release's form, for a run that an earlier one opened. Those of a
    pipeline that was removed are not made again.
    """
    if session.ledger.is_installed() and session.target.is_installed():
        session.migrate()


def require_opened(session: PipelineSession, opened: OpenedRun) -> PipelineState:
    """The pipeline's state, if no other run owns it. Errors: those of `require_pipeline`."""
    return require_pipeline(
        session.ledger.state(),
        pipeline=opened.pipeline,
        log_id=opened.log_id,
        owner=opened.owner,
        generation=opened.generation,
    )


def opened_bounds(session: PipelineSession, opened: OpenedRun) -> RunBounds:
    """The bounds of an opened run. Errors: `OwnershipLost` where the ledger knows no such run: the pipeline was removed
    meanwhile, or this is the ledger of another target, whose generation has the same number.
    """
    bounds = session.ledger.run_bounds(opened.run_id)
    if bounds is None:
        raise generation_over(opened.pipeline, opened.generation)
    return bounds


def reader_entry(target: Target, endpoint: Endpoint, pipeline: str) -> LogReaderEntry:
    """As which the pipeline's target is known to its log."""
    found = target.identity()
    return LogReaderEntry(
        pipeline=pipeline,
        server=found.server,
        database=found.database,
        place=endpoint.place,
    )


def claimant_of(role: str) -> str:
    """A name that is nobody else's, and tells a person whose it is."""
    return f"{role} on {socket.gethostname()} pid {os.getpid()} {uuid4().hex[:8]}"
