"""Errors as text, for what lies between processes: Spark's workers, a router."""

from __future__ import annotations

import json
from typing import Final

from airflow_parallel_apply.pipeline import errors
from airflow_parallel_apply.pipeline.errors import ParallelApplyError

_FIELDS: Final = ("op", "pipeline", "channel", "seqno", "table", "column", "hint", "values")


def pack(error: ParallelApplyError) -> str:
    """As JSON: a worker returns it as a result, since an exception that it raised would be retried and drowned. Of a
    class that a room has for itself its base in the tree comes back, which says as much of what a caller may do.
    """
    kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)
    return json.dumps({"class": kind, "message": error.message, **{name: getattr(error, name) for name in _FIELDS}})


def unpack(text: str) -> ParallelApplyError:
    """Inverse of `pack`: an error of the same class; of the root where this release knows none of that name."""
    value = json.loads(text)
    kind = getattr(errors, value.pop("class"), None)
    if not (isinstance(kind, type) and issubclass(kind, ParallelApplyError)):
        kind = ParallelApplyError
    return kind(value.pop("message"), **value)
