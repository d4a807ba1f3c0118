"""From a DSN to a queue."""

from __future__ import annotations

from airflow_parallel_apply.queue.model import QueueMisconfigured
from airflow_parallel_apply.queue.protocol import Queue

_SERVICE_SCHEMES = ("grpc://", "grpcs://")


def open_queue(dsn: str, *, schema: str = "parallel_apply") -> Queue:
    """The queue in a PostgreSQL database (`postgresql://…` or libpq's `key=value` form), or behind a service
    (`grpc://host:port`, `grpcs://:token@host:port?ca=…`, which has no schema); connects at the first call.

    Errors: `QueueMisconfigured` for a DSN that is none of them, or for a service without the extra `service`.
    """
    # Late: the words of the queue are imported where no database driver is, and no gRPC.
    if dsn.startswith(_SERVICE_SCHEMES):
        try:
            from airflow_parallel_apply.queue.client import QueueClient
        except ImportError as error:
            raise QueueMisconfigured(
                f"the queue's service needs {error.name}. Hint: pip install 'airflow-provider-parallel-apply[service]'."
            ) from error
        return QueueClient(dsn)
    from airflow_parallel_apply.queue.postgres import PostgresQueue

    return PostgresQueue(dsn, schema=schema)
