"""Manifests of files that appear together: what each commit adds, and how far it comes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.log.checked_file import checked_bytes

FOLDER: Final = "_manifests"
"""Begins with `_`: readers of whole directories pass it over."""

_SUFFIX: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file. `path`: below the place. `relation_id`: the version of the table's definition that its rows have.
    `first_seqno`, `last_seqno`: of its rows. `checksum`: XXH3 of its bytes, 128 bits.
    """

    path: str
    table: str
    relation_id: int
    rows: int
    bytes_: int
    first_seqno: int
    last_seqno: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """The columns of one version of a table's definition as the files have them. `columns`: pairs of a name and a type;
    `texts`: names of those that keep the source's text; `key`: of those by which its rows are told apart, none where
    that is by all values or by nothing. None: an older version of the software did not say it.
    """

    table: str
    relation_id: int
    columns: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]
    key: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileManifest:
    """One commit. `positions`: how far the files come, up to and including this commit; what they are keyed by is
    their writer's. `kept_as_text`: columns, as schema.table.column, that keep the source's text from now on, though
    their type has a better one. `log_id`: whose changes they are. `writer`: a name that nobody else has. `state`: what
    else its writer keeps, JSON that moves with the files. `first_version`: of a merged manifest, which has the files of
    all versions from there on; None: of this one alone.
    """

    version: int
    log_id: str
    format: str
    writer: str
    created: datetime
    positions: Mapping[str, int]
    kept_as_text: tuple[str, ...]
    tables: tuple[TableSchema, ...]
    files: tuple[DataFile, ...]
    state: Mapping[str, Any] = field(default_factory=dict)
    first_version: int | None = None

    def to_bytes(self) -> bytes:
        """The file's content, with a checksum of its own."""
        body = {**asdict(self), "created": self.created.isoformat(), "positions": dict(self.positions)}
        if self.first_version is None:
            # As versions of this software have it that merge no manifests.
            del body["first_version"]
        return checked_bytes(body)

    @classmethod
    def from_bytes(cls, content: bytes, path: str) -> FileManifest:
        """Inverse of `to_bytes`. Errors: `EncodeError` that names the file."""
        try:
            body: dict[str, Any] = json.loads(content)["body"]
            if checked_bytes(body) != content:
                raise ValueError("it does not match its checksum")
            return cls(
                **{
                    **body,
                    "created": datetime.fromisoformat(body["created"]),
                    "kept_as_text": tuple(body["kept_as_text"]),
                    "tables": tuple(_table(value) for value in body["tables"]),
                    "files": tuple(DataFile(**value) for value in body["files"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EncodeError(f"{path} is no manifest of this version of the software: {error}", op="export") from error


def manifest_path(version: int) -> str:
    """The path of a version, below the place."""
    return f"{FOLDER}/{version:020d}{_SUFFIX}"


def version_of(path: str) -> int | None:
    """Inverse of `manifest_path`; None for any other file."""
    name = path.removeprefix(f"{FOLDER}/").removesuffix(_SUFFIX)
    return int(name) if name.isdigit() and path == manifest_path(int(name)) else None


def _table(value: dict[str, Any]) -> TableSchema:
    return TableSchema(
        table=value["table"],
        relation_id=value["relation_id"],
        columns=tuple((name, kind) for name, kind in value["columns"]),
        texts=tuple(value["texts"]),
        key=tuple(value["key"]) if value.get("key") is not None else None,
    )
