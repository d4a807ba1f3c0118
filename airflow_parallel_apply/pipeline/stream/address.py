"""The URL of a log: a directory's, `/mnt/log` or `file:///mnt/log`; or of one that a router serves,
`grpc://127.0.0.1:7413/orders`, `grpcs://:token@host:7413/orders?ca=/ca.pem`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.service.address import AddressError, Served, ServiceAddress, is_service

_LOG: Final = Served(name="a router's log", carries="token and rows", path="LOG")
_LOCAL_HOSTS: Final = ("", "localhost")
_ROUTER: Final = Served(name="a router", carries="token and rows")


def log_path(url: str) -> Path:
    """The directory of a log that no router serves, from `file:///dir` or a path. Errors: `ConfigurationError`, which
    never repeats the URL.
    """
    if is_service(url):
        raise ConfigurationError(
            "log_url names a router, and this needs the log's directory",
            hint="Give the directory itself, on a host that has it: capture's or the router's.",
        )
    parts = urlsplit(url)
    if not parts.scheme:
        path = url
    elif parts.scheme == "file" and parts.netloc in _LOCAL_HOSTS:
        path = unquote(parts.path)
    else:
        raise ConfigurationError(
            f"log_url {parts.scheme}:…: logs of this kind are not supported",
            hint="log_url takes a directory that every worker sees, file:///… or /…, or a router's log, grpcs://….",
        )
    if not path:
        raise ConfigurationError("log_url is empty", hint="log_url takes a directory: file:///… or /….")
    if path.startswith("~"):
        raise ConfigurationError(
            "log_url begins with ~, which is another directory for each user", hint="Give the directory's whole path."
        )
    return Path(path).absolute()


def log_address(url: str) -> ServiceAddress:
    """Parse the URL of a log; its path is the log's name. Errors: `ConfigurationError`, which never repeats the URL."""
    return _parsed(url, _LOG, "log_url: ")


def log_at_router(url: str, router_url: str) -> str:
    """The URL of a log with the token and the files of a router's URL, where it names the same router without any. Any
    other URL as it is. Errors: as `log_address`.
    """
    if not is_service(url):
        return url
    log, router = log_address(url), router_address(router_url)
    if (log.target, log.tls) != (router.target, router.tls) or log != replace(
        log, token=None, ca=None, cert=None, key=None
    ):
        return url
    return replace(router, path=log.path).url(with_token=True)


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
