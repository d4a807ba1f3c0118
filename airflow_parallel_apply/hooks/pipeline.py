"""PipelineHook: a pipeline's database from any DAG: how far it is, and stopping it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_parallel_apply.hooks.connections import DATABASE_TYPE, pipeline_queue, pipeline_router, target
from airflow_parallel_apply.pipeline.config import Endpoint

if TYPE_CHECKING:
    import psycopg

    from airflow_parallel_apply.pipeline.admin.status import PipelineStatus
    from airflow_parallel_apply.pipeline.coordinate.state import CoordinatorState


class PipelineHook(BaseHook):
    """The source or target database of a pipeline.

    :param parallel_apply_conn_id: a connection of type ``parallel_apply`` or ``postgres``
    :param queue_conn_id: a connection to the pipeline's queue, if that is not in its ledger's database
    :param ledger_conn_id: a connection to the pipeline's ledger, if that is not in the target's database
    :param router_conn_id: a connection to the router of the store memory, if that is not the host's embedded one
    """

    conn_name_attr = "parallel_apply_conn_id"
    default_conn_name = "parallel_apply_target"
    conn_type = DATABASE_TYPE
    hook_name = "Parallel Apply (PostgreSQL)"

    def __init__(
        self,
        parallel_apply_conn_id: str = default_conn_name,
        *,
        queue_conn_id: str = "",
        ledger_conn_id: str = "",
        router_conn_id: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.parallel_apply_conn_id = parallel_apply_conn_id
        self.queue_conn_id = queue_conn_id
        self.ledger_conn_id = ledger_conn_id
        self.router_conn_id = router_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Say how the connection form shows the standard fields."""
        return {
            "hidden_fields": [],
            "relabeling": {"schema": "Database"},
            "placeholders": {"port": "5432", "extra": '{"sslmode": "require"}'},
        }

    @property
    def endpoint(self) -> Endpoint:
        """The connection, resolved and checked by type. Errors: `ConfigurationError`."""
        return target(self.parallel_apply_conn_id, self.ledger_conn_id, parameter=self.conn_name_attr)

    def get_conn(self) -> psycopg.Connection[tuple[Any, ...]]:
        """An open session; the caller closes it."""
        import psycopg

        return psycopg.connect(self.endpoint.url)

    def test_connection(self) -> tuple[bool, str]:
        """Answer the button Test of the connection form."""
        import psycopg

        from airflow_parallel_apply.pipeline.errors import ParallelApplyError

        try:
            with self.get_conn() as connection:
                row = connection.execute("SELECT version()").fetchone()
        except (psycopg.Error, ParallelApplyError) as error:
            return False, str(error)
        return True, str(row[0] if row else "")

    def status(self, pipeline: str, *, log_url: str | None = None) -> PipelineStatus:
        """The progress of a pipeline into this database, by channel."""
        from airflow_parallel_apply.pipeline.admin.status import read_status
        from airflow_parallel_apply.pipeline.stream.address import log_at_router

        router = pipeline_router(self.router_conn_id)
        if log_url is not None and router is not None:
            log_url = log_at_router(log_url, router.url)
        return read_status(self.endpoint, pipeline, log_url, queue=pipeline_queue(self.queue_conn_id), router=router)

    def request_stop(self, pipeline: str) -> CoordinatorState:
        """Stop a running pipeline into this database cleanly, with every channel at one seqno."""
        from airflow_parallel_apply.pipeline.run import request_stop

        return request_stop(pipeline, self.endpoint, queue=pipeline_queue(self.queue_conn_id))
