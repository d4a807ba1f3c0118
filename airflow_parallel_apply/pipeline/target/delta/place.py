"""The lake that a URL names: where its tables lie, and with which options delta-rs and Arrow reach them.

::

    delta:///mnt/lake                                      a directory that every worker sees
    delta+s3://KEY:SECRET@bucket/prefix?region=eu-west-1   a bucket; without a login, by the machine's own rights
    …?feed=true                                            tables of every change, instead of the current rows

Below its root lie `<schema>/<table>`, and `_parallel_apply/<pipeline>` with the positions and what is staged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pyarrow import fs

from airflow_parallel_apply.pipeline.errors import ConfigurationError

CONTROL: Final = "_parallel_apply"
"""Holds everything that is no table."""

_S3: Final = "s3"
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
"""Characters of names that some reader of paths takes for something else. Percent signs are undone by some, too."""

_OPTIONS: Final = {"region": "AWS_REGION", "endpoint_url": "AWS_ENDPOINT_URL", "session_token": "AWS_SESSION_TOKEN"}
"""Options of the URL, and what delta-rs calls them."""


@dataclass(frozen=True)
class Lake:
    """A root, a path or `s3://bucket/prefix`, with the options of its storage, which may be secrets."""

    root: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_feed: bool = False
    """True if its tables have every change, one row each."""

    @property
    def is_local(self) -> bool:
        """True if it is a directory."""
        return "://" not in self.root

    def uri(self, *parts: str) -> str:
        """The address of a table or a file below the root."""
        return "/".join((self.root, *(_UNFIT.sub(_escaped, part) for part in parts)))

    def table_uri(self, schema: str, table: str) -> str:
        """The address of a source's table."""
        return self.uri(schema, table)

    def path(self, uri: str) -> str:
        """An address as `files` takes it."""
        return uri if self.is_local else uri.partition("://")[2]

    @cached_property
    def files(self) -> fs.FileSystem:
        """The storage, for files that are no part of a table. It lets go of Python's lock while it waits."""
        if self.is_local:
            return fs.LocalFileSystem()
        endpoint = self.options.get("AWS_ENDPOINT_URL")
        scheme, _, host = (endpoint or "").rpartition("://")
        return fs.S3FileSystem(
            access_key=self.options.get("AWS_ACCESS_KEY_ID"),
            secret_key=self.options.get("AWS_SECRET_ACCESS_KEY"),
            session_token=self.options.get("AWS_SESSION_TOKEN"),
            region=self.options.get("AWS_REGION"),
            endpoint_override=host or None,
            scheme=scheme or None,
        )


def lake_of(url: str) -> Lake:
    """The lake of a target's URL. Errors: `ConfigurationError` for one that names none."""
    parts = urlsplit(url)
    _, _, protocol = parts.scheme.partition("+")
    if parts.fragment:
        raise _wrong("it would end at its #: write %23 for one in the name of a directory")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    feed = given.pop("feed", "false")
    if feed not in ("true", "false"):
        raise _wrong(f"feed={feed} is neither true nor false")
    is_feed = feed == "true"
    # delta-rs undoes such escapes once more, and then writes elsewhere than it reads.
    path = parts.path if protocol == _S3 else unquote(parts.path)
    if unquote(path) != path:
        raise _wrong(f"a directory's name may have no %, as {path} has one before two digits")
    if protocol in ("", "file"):
        if parts.netloc or not parts.path.strip("/") or given:
            raise _wrong(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} names no directory")
        return Lake(str(Path(path)), is_feed=is_feed)
    if protocol != _S3:
        raise _wrong(f"{protocol}:// is not usable")
    unknown = given.keys() - _OPTIONS.keys()
    if unknown:
        raise _wrong(f"unknown options: {', '.join(sorted(unknown))}")
    if not parts.hostname:
        raise _wrong("the URL names no bucket")
    options = {_OPTIONS[name]: value for name, value in given.items()}
    if parts.username:
        options["AWS_ACCESS_KEY_ID"] = unquote(parts.username)
        options["AWS_SECRET_ACCESS_KEY"] = unquote(parts.password or "")
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    bucket = parts.netloc.rpartition("@")[2]
    return Lake(f"s3://{bucket}{parts.path.rstrip('/')}", options, is_feed)


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"~{byte:02x}" for byte in found[0].encode())


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the target is no lake: {what}",
        hint="Use delta:///path of a directory that every worker sees, or delta+s3://bucket/prefix with the options "
        f"{', '.join(_OPTIONS)}.",
    )
