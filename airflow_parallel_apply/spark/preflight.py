"""Checks what Spark's executors see: the target, the log, and a Python that can apply.

The function that looks travels by value, because it also has to detect workers that lack this package: it refers to
nothing in this module and imports what it needs where it runs. The target's probe travels inside it as bytes, which
only a worker with the same release unpickles; the target's secret travels with it, as it does with an apply job.
"""

from __future__ import annotations

import json
import pickle
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from airflow_parallel_apply.pipeline.check.directory import nearest, probe
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.log.directory import LogDirectory
from airflow_parallel_apply.pipeline.log.open import log_exists, reader_if_there
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding, refuse
from airflow_parallel_apply.pipeline.open import DRIVERS
from airflow_parallel_apply.pipeline.stream.address import place_of_log
from airflow_parallel_apply.pipeline.target.open import target_connector
from airflow_parallel_apply.service.address import is_service
from airflow_parallel_apply.spark.faults import spark_errors
from airflow_parallel_apply.spark.schemas import RESULT_SCHEMA
from airflow_parallel_apply.spark.session import close_session, leave_unmeasured, open_session, release_session

_PACKAGE: Final = "airflow-provider-parallel-apply"
_TASKS: Final = 8
"""Spark spreads them as it likes; on a small cluster they reach every executor."""

_finding: Final = partial(new_finding, Side.SPARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLog:
    """A log that a router serves, for a look from elsewhere. `log_id`: empty where there is none yet."""

    url: str = field(repr=False)
    log_id: str

    def is_here(self) -> bool:
        """True if this process is served the same one. Errors: those of the reader."""
        found = reader_if_there(self.url)
        return ("" if found is None else found.identity.log_id) == self.log_id


def worker_findings(url: str, log_url: str, target: Endpoint) -> tuple[Finding, ...]:
    """Look from the executors behind a Spark Connect URL, in a session of its own. Errors: Spark's own."""
    session_id = str(uuid4())
    try:
        return _ask(url, session_id, log_url, target)
    finally:
        release_session(url, session_id)


def require_workers(url: str, session_id: str, log_url: str, target: Endpoint) -> None:
    """The same in a session that stays, and its workers warm, for who applies next. `ConfigurationError` with all that
    are errors; then the session is released.
    """
    try:
        refuse_workers(_ask(url, session_id, log_url, target, is_new=True))
    except ParallelApplyError:
        release_session(url, session_id)
        raise


def session_findings(session: Any, log_url: str, target: Endpoint, *, tasks: int = _TASKS) -> tuple[Finding, ...]:
    """Look from the executors of a session, Connect or classic, as that many tasks reach. Errors: Spark's own."""
    with ExitStack() as stack:
        served, path, content = None, "", b""
        if is_service(log_url):
            log = reader_if_there(log_url)
            served = ServedLog(url=log_url, log_id="" if log is None else log.identity.log_id)
        else:
            root = LogDirectory.from_url(log_url).root
            # Where there is no log yet, a file of the moment tells whether a directory is shared.
            seen = root / "log.json" if log_exists(log_url) else stack.enter_context(probe(nearest(root)))
            path, content = str(seen), seen.read_bytes()
        probing = pickle.dumps((target_connector(target), target, served))
        look = _look(probing, path, content, _PACKAGE, version(_PACKAGE), ("pyarrow", "numpy", "xxhash", *DRIVERS))
        with spark_errors("check"):
            results = session.range(0, tasks, 1, tasks).mapInArrow(look, RESULT_SCHEMA).toArrow()
    reports = [json.loads(text) for text in results.column("result").to_pylist()]
    place = path or place_of_log(log_url)
    found = (finding for report in reports for finding in _findings(report, place, target))
    return tuple(dict.fromkeys(found))


def refuse_workers(findings: Sequence[Finding]) -> None:
    """`ConfigurationError` with all that are errors."""
    refuse(findings, place="Spark", op="check Spark's workers")


def _ask(url: str, session_id: str, log_url: str, target: Endpoint, *, is_new: bool = False) -> tuple[Finding, ...]:
    """`is_new`: the session begins its life as one of a server of our own does."""
    session = open_session(url, session_id)
    try:
        if is_new:
            leave_unmeasured(session)
        return session_findings(session, log_url, target)
    finally:
        close_session(session)


def _look(
    probing: bytes, path: str, content: bytes, package: str, release: str, needed: tuple[str, ...]
) -> Callable[[Any], Iterator[pa.RecordBatch]]:
    def look(batches: Any) -> Iterator[Any]:
        import importlib
        import importlib.metadata
        import json
        import pathlib
        import pickle
        import socket
        import sys

        for _ in batches:
            pass
        import pyarrow

        report: dict[str, Any] = {"host": socket.gethostname(), "python": sys.executable, "lacks": [], "version": None}
        for name in needed:
            try:
                importlib.import_module(name)
            except ImportError:
                report["lacks"].append(name)
        try:
            report["version"] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            report["lacks"].append(package)
        try:
            report["log"] = "same" if not path or pathlib.Path(path).read_bytes() == content else "other"
        except OSError as error:
            report["log"] = error.strerror or str(error)
        if not report["lacks"] and report["version"] == release:
            connector, target, served = pickle.loads(probing)  # noqa: S301  # made by the driver, as the function is
            try:
                if served is not None and not served.is_here():
                    report["log"] = "other"
            except Exception as error:  # noqa: BLE001
                report["log"] = getattr(error, "message", str(error))
            try:
                connector.probe(target)
            except Exception as error:  # noqa: BLE001  # whatever it is, the driver tells it
                report["target"] = getattr(error, "message", str(error))
        yield pyarrow.record_batch([pyarrow.array([json.dumps(report)])], names=["result"])

    return look


def _findings(report: dict[str, Any], log_place: str, target: Endpoint) -> Iterator[Finding]:
    host, ours = report["host"], version(_PACKAGE)
    install = f"{shlex.quote(report['python'])} -m pip install {shlex.quote(f'{_PACKAGE}[spark]=={ours}')}"
    if report["lacks"]:
        yield _finding(host, f"the Python of Spark's workers on {host} lacks {', '.join(report['lacks'])}", install)
    elif report["version"] != ours:
        yield _finding(host, f"Spark's workers on {host} have {_PACKAGE} {report['version']}, here is {ours}", install)
    if report["log"] != "same":
        what = "another one" if report["log"] == "other" else report["log"]
        is_served = is_service(log_place)
        yield _finding(
            host,
            f"Spark's workers on {host} do not see the log that a router serves at {log_place}: {what}"
            if is_served
            else f"Spark's workers on {host} do not see the log's directory: {log_place}: {what}",
            note="They read its rows: let them reach its port, and see its authority's file where log_url names one."
            if is_served
            else "log_url must be one directory that every worker sees, such as a network file system.",
        )
    if "target" in report:
        yield _finding(
            host,
            f"Spark's workers on {host} cannot connect to the target {target.place}: {report['target']}",
            note="They load the rows: let them reach the target's port, and log in as the connection does.",
        )
