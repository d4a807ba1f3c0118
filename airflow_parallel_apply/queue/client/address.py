"""Addresses of the queue's service."""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.queue.model import QueueMisconfigured
from airflow_parallel_apply.service.address import AddressError, Served, ServiceAddress

_QUEUE: Final = Served(name="the queue's service", carries="token and tasks")


def queue_address(url: str) -> ServiceAddress:
    """Parse it. Errors: `QueueMisconfigured`."""
    try:
        return ServiceAddress.parse(url, _QUEUE)
    except AddressError as error:
        raise QueueMisconfigured(str(error)) from None
