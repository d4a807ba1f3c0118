"""Waiting for the first executor, whose Python is warm then."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final
from uuid import uuid4

from airflow_parallel_apply.pipeline.errors import ParallelApplyError, Unavailable
from airflow_parallel_apply.spark.classic import ClassicAccess
from airflow_parallel_apply.spark.session import warm_up
from airflow_parallel_apply.spark.submitted.link import TaskLink

_LOOK_SECONDS: Final = 1.0


def await_executor(access: ClassicAccess, link: TaskLink, *, enough: Callable[[], bool]) -> None:
    """Returns when an executor has run a job, when the task asks to end, or when `enough` says so; asked every second.

    Errors: what went wrong there; those of `enough`.
    """
    session = access.open()
    tag = f"await-{uuid4().hex}"
    failures: list[ParallelApplyError] = []

    def look() -> None:
        try:
            with access.tagged(session, tag):
                warm_up(session, 1)
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
