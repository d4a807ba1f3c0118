"""Compares a directory with what a pipeline expects of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from airflow_parallel_apply.pipeline.encode.columns.rows import row_typing
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import LOCAL
from airflow_parallel_apply.pipeline.encode.open import open_encoder
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.model.value_type import ValueKind
from airflow_parallel_apply.pipeline.target.expectation import Expectation, names_of
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.head import Head
from airflow_parallel_apply.pipeline.target.protocol import TargetIdentity

_WHERE: Final = "directory"
_LONGEST: Final = 255
"""Bytes of a name on a disk."""


def identity_of(address: FilesAddress) -> TargetIdentity:
    """Protocol and service, and the directory on it."""
    parts = urlsplit(address.url)
    service = address.options.get("endpoint_url", "")
    return TargetIdentity(server=f"{parts.scheme}://{service}", database=f"{parts.netloc}{parts.path}")


def has_files(dataset: Dataset) -> bool:
    """True if anybody has committed files to a directory."""
    return any(manifest.files for manifest in dataset.manifests())


def directory_findings(
    dataset: Dataset, address: FilesAddress, pipeline: str, expected: Expectation
) -> tuple[Finding, ...]:
    """See `Target.findings`."""
    return (
        *_place_findings(dataset, address, pipeline, expected),
        *_name_findings(dataset, address, {*expected.followed, *names_of(expected.tables)}),
        *_table_findings(address, expected.tables),
    )


def _place_findings(dataset: Dataset, address: FilesAddress, pipeline: str, expected: Expectation) -> Iterator[Finding]:
    try:
        head = Head.of(dataset.newest())
    except EncodeError as error:
        yield new_finding(Side.TARGET, _WHERE, f"{address.url}: {error.message}", note=error.hint or "")
        return
    if head.pipeline not in ("", pipeline):
        yield new_finding(
            Side.TARGET,
            _WHERE,
            f"{address.url} is the directory of pipeline {head.pipeline}",
            note="Give each pipeline a directory of its own.",
        )
    elif (expected.are_empty or expected.are_new) and has_files(dataset):
        yield new_finding(
            Side.TARGET,
            _WHERE,
            f"{address.url} has files of a pipeline already, and another log numbers its transactions anew",
            note="Give the pipeline a directory of its own.",
        )


def _name_findings(dataset: Dataset, address: FilesAddress, tables: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Find tables that manifests call alike, since names may have dots, and those whose folder no disk takes."""
    places: dict[str, list[str]] = {}
    for schema, table in sorted(tables):
        places.setdefault(f"{schema}.{table}", []).append(f'"{schema}"."{table}"')
    for name, found in places.items():
        if len(found) > 1:
            yield _misnamed(name, f"{' and '.join(found)} would be one table {name} of the directory")
        folder, _, _ = dataset.data_path(name, 0, "").partition("/")
        if urlsplit(address.url).scheme in LOCAL and len(folder) > _LONGEST:
            yield _misnamed(name, f"{name} has a name that is too long for a folder: {folder}")


def _misnamed(name: str, what: str) -> Finding:
    found = new_finding(Side.TARGET, name, what, note="Rename it at the source, or exclude it.")
    return replace(found, is_table=True)


def _table_findings(address: FilesAddress, tables: tuple[Relation, ...]) -> Iterator[Finding]:
    for relation in tables:
        typing = row_typing(relation, address.texts_of(relation.name))
        try:
            open_encoder(address.format, typing)
        except (ConfigurationError, EncodeError) as error:
            yield new_finding(Side.TARGET, relation.name, error.message, note=error.hint or "")
            continue
        texts = [
            one.column.name for one in typing.columns if one.is_text and one.column.value.kind is not ValueKind.TEXT
        ]
        if texts:
            yield Finding(
                severity=Severity.WARNING,
                side=Side.TARGET,
                where=relation.name,
                is_table=True,
                what=f"these columns are kept as the source's text: {', '.join(texts)}",
                note="No type of the format holds all their values.",
            )
