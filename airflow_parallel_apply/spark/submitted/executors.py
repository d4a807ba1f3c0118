"""Waiting for the first executor, whose Python is warm then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ParallelApplyError, Unavailable
from airflow_parallel_apply.spark.classic import ClassicAccess
from airflow_parallel_apply.spark.preflight import refuse_workers, session_findings
from airflow_parallel_apply.spark.submitted.link import TaskLink

_LOOK_SECONDS: Final = 1.0


def await_executor(
    access: ClassicAccess, link: TaskLink, log_url: str, target: Endpoint, *, enough: Callable[[], bool]
) -> None:
    """Returns when an executor has looked at log and target, when the task asks to end, or when `enough` says so, asked
    every second. Errors: what is not as it should be there, as `preflight` says it; those of `enough`.
    """
    session = access.open()
    tag = f"await-{uuid4().hex}"
    failures: list[ParallelApplyError] = []

    def look() -> None:
        try:
            with access.tagged(session, tag):
                refuse_workers(session_findings(session, log_url, target, tasks=1))
        except ParallelApplyError as error:
            failures.append(error)

    looking = threading.Thread(target=look, name="await an executor", daemon=True)
    looking.start()
    interrupted = False
    try:
        while looking.is_alive():
            looking.join(_LOOK_SECONDS)
            if looking.is_alive() and (link.cancelled or enough()):
                interrupted = True
                return
    finally:
        if looking.is_alive():
            with contextlib.suppress(Unavailable):
                access.interrupt(session, tag)
    if failures and not interrupted:
        raise failures[0]
