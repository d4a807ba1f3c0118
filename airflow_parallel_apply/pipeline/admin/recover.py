"""Bringing a pipeline whose run was cut off to rest, without a run: what hangs between prepared and committed is ended,
staging is dropped.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest
from airflow_parallel_apply.pipeline.run.bounds import stopped_at

_LEASE: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The branches that were found and ended. `finished`: first and last seqno of the group that was committed to its
    end. `rolled_back`: number of branches of a group that was not decided.
    """

    pipeline: str
    finished: tuple[int, int] | None
    rolled_back: int

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def recover_pipeline(target: Endpoint, pipeline: str) -> Recovered:
    """Own the pipeline for a moment, as the next run would. Errors: `LeaseBusy` while a run is alive;
    `ConfigurationError` where the target knows no such pipeline; those of `Target.own`.
    """
    with closing(open_pipeline(target, pipeline)) as session:
        former = session.state()
        if former is None:
            raise ConfigurationError(
                "the target knows no such pipeline", pipeline=pipeline, hint="Its first run registers it."
            )
        session.migrate()
        pending = session.target.pending()
        owner = f"recover on {socket.gethostname()} pid {os.getpid()}"
        taken = session.acquire(
            LeaseRequest(log_id=former.log_id, owner=owner, lease=_LEASE, queue=former.queue, is_known=True)
        )
        session.ledger.release(taken.generation, clean_stop_seqno=stopped_at(session.target.positions()))
    return Recovered(
        pipeline=pipeline,
        finished=pending.decided,
        rolled_back=0 if pending.decided is not None else pending.branches,
    )
