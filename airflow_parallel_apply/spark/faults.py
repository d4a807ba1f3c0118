"""Errors of Spark, translated into this package's: one line each."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    LogError,
    ParallelApplyError,
    SessionClosed,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.packed_error import pack, unpack

_LOG_CLASSES: Final = ("PATH_NOT_FOUND", "FAILED_READ_FILE", "FILE_NOT_EXIST", "CANNOT_READ_FILE")
_UNFIT_PYTHON: Final = (
    "ModuleNotFoundError",
    "PACKAGE_NOT_INSTALLED",
    "PYTHON_VERSION_MISMATCH",
    "Cannot run program",
)
_NO_TLS: Final = "WRONG_VERSION_NUMBER"
"""OpenSSL's name for an answer that is not TLS."""
_NO_SERVER: Final = "failed to connect to all addresses"
"""gRPC's words when no server accepts its connection."""
_LINE_LIMIT: Final = 400
_MARK: Final = "parallel_apply_error: "


class WorkerError(Exception):
    """An error of ours as a worker raises it where it cannot return it; Spark repeats its text in its own error."""

    @classmethod
    def holding(cls, error: ParallelApplyError) -> WorkerError:
        """With all that the error says."""
        return cls(f"{_MARK}{pack(error)}")


@contextlib.contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Turn what Spark raises into this package's errors; Spark's own error stays as the cause."""
    import grpc
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, grpc.RpcError) as error:
        raise translate(error, doing) from error


def translate(error: Exception, doing: str) -> ParallelApplyError:
    """Translate a failure of Spark into the error that its caller expects.

    The server is gone, the job was interrupted, or a worker died more often than tasks are retried: `Unavailable`. The
    session is gone: `SessionClosed`. A file of the log is missing or not readable: `LogError`. A Python exception in a
    worker that is none of ours: `TargetError`. No access: `ConfigurationError`.
    """
    from pyspark.errors import PythonException

    held = _held(error)
    if held is not None:
        return held
    code, name = _status(error), _error_class(error)
    if code == "UNAUTHENTICATED":
        return ConfigurationError(
            "the Spark Connect server refuses this client's token",
            op=doing,
            hint="Check the Spark connection's token; an embedded server has a new one after each start.",
        )
    if _NO_TLS in str(error):
        return ConfigurationError(
            "the Spark Connect server speaks no TLS, without which a token is sent to localhost only",
            op=doing,
            hint="Name its host localhost where it is on this one, 127.0.0.1 is not enough; elsewhere put a proxy that "
            "speaks TLS before it.",
        )
    if any(sign in str(error) for sign in _UNFIT_PYTHON):
        line = next(line for line in str(error).splitlines() if any(sign in line for sign in _UNFIT_PYTHON))
        return ConfigurationError(
            f"the Python of Spark's workers does not fit: {line.strip()[:_LINE_LIMIT]}",
            op=doing,
            hint="Workers need this Python's version, with this package and its extra spark, at the path that "
            "PYSPARK_PYTHON or spark.pyspark.python names.",
        )
    if isinstance(error, PythonException):
        return TargetError(f"a Python worker of Spark failed: {_last_line(error)}", op=doing)
    if name.startswith(_LOG_CLASSES) or any(sign in str(error) for sign in ("FileNotFoundException", *_LOG_CLASSES)):
        return LogError(
            f"Spark cannot read a file of the log: {_first_line(error)}",
            op=doing,
            hint="The log directory must be visible to every Spark worker under the same path.",
        )
    if name.startswith("INVALID_HANDLE"):
        return SessionClosed(
            f"the Spark session is gone ({name.rpartition('.')[2] or name})", op=doing, hint="Open one with a new id."
        )
    if _NO_SERVER in str(error):
        return Unavailable(
            f"the Spark Connect server does not answer: {_first_line(error)}",
            op=doing,
            hint="Is it up, and reachable from here at the connection's host and port?",
        )
    return Unavailable(f"Spark did not finish: {_first_line(error)}", op=doing)


def _held(error: Exception) -> ParallelApplyError | None:
    """The error that a worker raised as a `WorkerError`, which stands on a line of its own."""
    for line in str(error).splitlines():
        _, mark, text = line.partition(_MARK)
        if mark:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found, _ = json.JSONDecoder().raw_decode(text)
                return unpack(json.dumps(found))
    return None


def _status(error: Exception) -> str:
    for method in ("getGrpcStatusCode", "code"):
        found: Any = getattr(error, method, None)
        if found is not None:
            return str(getattr(found(), "name", ""))
    return ""


def _error_class(error: Exception) -> str:
    found: Any = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    return str((found() if found is not None else "") or "")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    details = [line for line in lines if line.startswith("details =")]
    return (details or lines or [type(error).__name__])[0][:_LINE_LIMIT]


def _last_line(error: Exception) -> str:
    """The line of a Python traceback that says what happened: its last, which JVM frames may follow."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(("\t", " ", "JVM"))]
    return (lines or [type(error).__name__])[-1].strip()[:_LINE_LIMIT]
