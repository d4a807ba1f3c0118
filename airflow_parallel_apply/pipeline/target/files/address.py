"""The address of a directory of files: `files+<URL of any file system>?<options>`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.errors import ConfigurationError

FORMATS: Final = tuple(format_ for format_ in Format if format_ is not Format.DEBEZIUM)
"""An envelope names the source's server, of which a target knows nothing: exports write it."""

_OPTIONS: Final = ("format", "text", "endpoint_url", "region")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesAddress:
    """Where files lie, and what they are. `url`: without login and options. `texts`: columns, as schema.table.column,
    that keep the source's text. `options`: the file system's, with its secrets.
    """

    url: str
    format: Format
    texts: frozenset[str]
    options: dict[str, object] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> FilesAddress:
        """Errors: `ConfigurationError` for an unknown option or format, and for an address without a file system."""
        parts = urlsplit(text)
        _, plus, protocol = parts.scheme.partition("+")
        if not plus or not (parts.netloc or parts.path.strip("/")):
            raise ConfigurationError(
                f"{parts.scheme}:// is not the address of a directory of files",
                hint="It looks like files+file:///mnt/lake/shop or files+s3://bucket/shop?format=avro.",
            )
        if parts.fragment:
            raise ConfigurationError(
                "the address of a directory of files has a #, at which it would end", hint="Take another name for it."
            )
        given = dict(parse_qsl(parts.query))
        if unknown := sorted(given.keys() - set(_OPTIONS)):
            raise ConfigurationError(
                f"a directory of files has no option {', '.join(unknown)}", hint=f"Known are {', '.join(_OPTIONS)}."
            )
        format_ = given.get("format", Format.PARQUET)
        if format_ not in FORMATS:
            raise ConfigurationError(
                f"format {format_!r} is not usable for a directory of files", hint=f"Take one of {', '.join(FORMATS)}."
            )
        user, _, server = parts.netloc.rpartition("@")
        return cls(
            url=f"{protocol}://{server}{parts.path}".rstrip("/"),
            format=Format(format_),
            texts=frozenset(name.strip() for name in given.get("text", "").split(",") if name.strip()),
            options=_file_system_options(user, given),
        )

    def place(self) -> FilePlace:
        """The directory. Errors: those of `FilePlace`."""
        return FilePlace(self.url, self.options)

    def texts_of(self, table: str) -> list[str]:
        """The names of a table's columns that keep the source's text."""
        prefix = f"{table}."
        return [name.removeprefix(prefix) for name in self.texts if name.startswith(prefix)]


def _file_system_options(user: str, given: dict[str, str]) -> dict[str, object]:
    login, _, password = (unquote(part) for part in user.partition(":"))
    options: dict[str, object] = {"key": login, "secret": password} if user else {}
    if endpoint := given.get("endpoint_url"):
        options["endpoint_url"] = endpoint
    if region := given.get("region"):
        options["client_kwargs"] = {"region_name": region}
    return options
