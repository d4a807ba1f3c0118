"""The URL of a log that a router serves: `grpc://127.0.0.1:7413/orders`, `grpcs://:token@host:7413/orders?ca=/ca.pem`."""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.service.address import AddressError, Served, ServiceAddress, is_service

_LOG: Final = Served(name="a router's log", carries="token and rows", path="LOG")
_ROUTER: Final = Served(name="a router", carries="token and rows")


def log_address(url: str) -> ServiceAddress:
    """Parse the URL of a log; its path is the log's name. Errors: `ConfigurationError`, which never repeats the URL."""
    return _parsed(url, _LOG, "log_url: ")


def place_of_log(url: str) -> str:
    """The URL of a log for people: without a router's token; that of a directory as it is."""
    return log_address(url).place if is_service(url) else url


def router_address(url: str) -> ServiceAddress:
    """Parse the URL of a router, without a path. Errors: as `log_address`."""
    return _parsed(url, _ROUTER, "")


def _parsed(url: str, served: Served, parameter: str) -> ServiceAddress:
    try:
        return ServiceAddress.parse(url, served)
    except AddressError as error:
        raise ConfigurationError(f"{parameter}{error.message}", hint=error.hint) from None
