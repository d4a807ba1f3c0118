"""RouterHook: the router that holds pipelines' rows and serves logs, for the tasks of any DAG."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_parallel_apply.hooks.connections import ROUTER_TYPE, pipeline_router
from airflow_parallel_apply.pipeline.config import RouterEndpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.stream.client import StreamClient


class RouterHook(BaseHook):
    """A router service.

        RouterHook("our_router").health()

    :param router_conn_id: a connection of type ``parallel_apply_router``
    """

    conn_name_attr = "router_conn_id"
    default_conn_name = "parallel_apply_router"
    conn_type = ROUTER_TYPE
    hook_name = "Parallel Apply Router"

    def __init__(self, router_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.router_conn_id = router_conn_id

    @property
    def endpoint(self) -> RouterEndpoint:
        """The connection, resolved and checked by type. Errors: `ConfigurationError`."""
        found = pipeline_router(self.router_conn_id, parameter=self.conn_name_attr)
        if found is None:
            raise ConfigurationError(
                f"{self.conn_name_attr} is empty", hint=f"Name a connection of type {ROUTER_TYPE}."
            )
        return found

    def get_conn(self) -> StreamClient:
        """A client; connects at the first call. The caller closes it."""
        from airflow_parallel_apply.pipeline.stream.address import router_address
        from airflow_parallel_apply.pipeline.stream.client import StreamClient

        return StreamClient(router_address(self.endpoint.url), patience=timedelta(seconds=2))

    def health(self) -> dict[str, Any]:
        """The router's answer about itself: status, version, logs, streams. Errors: `Unavailable`."""
        with closing(self.get_conn()) as client:
            return client.call("health", {})

    def test_connection(self) -> tuple[bool, str]:
        """Answer the button Test of the connection form."""
        from airflow_parallel_apply.pipeline.errors import ParallelApplyError

        try:
            found = self.health()
        except ParallelApplyError as error:
            return False, str(error)
        return found["status"] == "serving", f"{found['status']}, logs: {', '.join(found['logs']) or 'none yet'}"
