"""Which errors end a wait."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError, ParallelApplyError


def is_final(error: ParallelApplyError) -> bool:
    """Whether to stop waiting.

    Configuration and connections were good when the task deferred. Airflow reports a connection as missing while its
    API server fails, so those errors are waited out too, up to the deadline.
    """
    return isinstance(error, FatalError) and not isinstance(error, ConfigurationError)
