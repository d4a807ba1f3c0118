"""From a DSN to a queue."""

from __future__ import annotations

from airflow_parallel_apply.queue.protocol import Queue


def open_queue(dsn: str, *, schema: str = "parallel_apply") -> Queue:
    """The queue in a PostgreSQL database (`postgresql://…` or libpq's `key=value` form); connects at the first call.

    Errors: `QueueMisconfigured` for a DSN that is neither.
    """
    # Late: the words of the queue are imported where no database driver is.
    from airflow_parallel_apply.queue.postgres import PostgresQueue

    return PostgresQueue(dsn, schema=schema)
