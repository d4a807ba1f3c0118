"""Opens a queue by its DSN."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Final

from airflow_parallel_apply.queue.model import QueueMisconfigured
from airflow_parallel_apply.queue.protocol import Queue
from airflow_parallel_apply.service.address import is_service

DEFAULT_DEADLINE: Final = timedelta(seconds=30)
PATIENCE: Final = timedelta(seconds=10)
"""The same for callers who are waited for, or who try again."""


def open_queue(dsn: str, *, schema: str = "parallel_apply", deadline: timedelta = DEFAULT_DEADLINE) -> Queue:
    """The queue in a PostgreSQL database (`postgresql://…` or libpq's `key=value` form), or behind a service
    (`grpc://host:port`, `grpcs://:token@host:port?ca=…`, which has no schema); connects at the first call.
    `deadline`: of each call to a service, beside what it waits for tasks.

    Errors: `QueueMisconfigured` for a DSN that is none of them, or for a service without the extra `service`.
    """
    # Late: the words of the queue are imported where no database driver is, and no gRPC.
    if is_service(dsn):
        try:
            from airflow_parallel_apply.queue.client import QueueClient
        except ImportError as error:
            raise QueueMisconfigured(
                f"the queue's service needs {error.name}. Hint: pip install 'airflow-provider-parallel-apply[service]'."
            ) from error
        return QueueClient(dsn, deadline=deadline)
    from airflow_parallel_apply.queue.postgres import PostgresQueue

    return PostgresQueue(dsn, schema=schema)


def prepare_queue(dsn: str, *, schema: str = "parallel_apply") -> tuple[str, ...]:
    """Make the tables that a queue in PostgreSQL lacks, saying which; or see whether a service serves.

    Errors: those of the first call: `QueueUnavailable`, `QueueMisconfigured`.
    """
    if not is_service(dsn):
        return migrate_tables(dsn, schema)
    look_at_queue(dsn)
    return ()


def migrate_tables(dsn: str, schema: str = "parallel_apply") -> tuple[str, ...]:
    """Make the tables that a queue in PostgreSQL lacks, saying which. Errors: as `prepare_queue`."""
    from airflow_parallel_apply.queue.postgres import migrate

    return migrate(dsn, schema)


def look_at_queue(dsn: str) -> None:
    """Ask for something small, and for a wait that is over at once: not every pooler lets a caller wait. Errors: those
    of the calls; of a service that is away, soon.
    """
    with closing(open_queue(dsn, deadline=PATIENCE)) as queue:
        queue.queue_stats(limit=1)
        queue.wait_empty(timeout=timedelta(0))
