"""Delta tables as a conditional write needs them: opened at a version, and committed from that version or not at all.

delta-rs tries a commit that met another one again by itself, and what it then lets through depends on the operation: an
append passes any other append, an overwrite passes whatever was appended meanwhile. Application transactions are
compared with what was committed in between only, not with what the table knew before: a lower version is taken. So
every commit here goes without retries (`max_commit_retries=0`), which makes it one compare and swap of the table's
version, and whoever lost reads again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import tenacity
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, SchemaMismatchError, TableNotFoundError

from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, TargetError, Unavailable
from airflow_parallel_apply.pipeline.target.delta.place import Lake

_TRIES: Final = 100
"""So many commits of others may come before one of ours."""

_PAUSE: Final = tenacity.wait_random_exponential(multiplier=0.01, max=1)
"""Longer after each loss, for a random while, so that many lanes at one table do not meet again."""

_PREVIEW: Final = " Preview of invalid data: "
"""Behind it are the values of rows."""

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Errors of delta-rs are written for a terminal."""

_FEATURE: Final = f"Somebody turned on what delta-rs cannot write. Drop the feature, or start anew. {START_ELSEWHERE}"
_REFUSALS: Final = {
    "Invalid data found": "Somebody gave the table a constraint, or a column that takes no nulls. Drop it, and "
    "clear the task open.",
    "append-only": "Unset the table's property delta.appendOnly, and clear the task open.",
    "Unsupported table features": _FEATURE,
    "Unsupported: ": _FEATURE,
    "lacked the necessary privileges": "Give the lake's login the right to write there.",
    "Invalid Checkpoint": "Somebody removed files of the table's log, as a lifecycle rule does. Put them "
    f"back, or start anew. {START_ELSEWHERE}",
}
"""Words of an error that no repetition mends, and what to do."""

T = TypeVar("T")


class Outrun(Exception):  # an answer, which `from_newest` handles
    """Another commit took the version."""


def open_table(lake: Lake, uri: str) -> DeltaTable | None:
    """The newest version of a table; None where there is none. Errors: `Unavailable`."""
    with table_errors("read"):
        try:
            return DeltaTable(uri, storage_options=dict(lake.options) or None)
        except TableNotFoundError:
            return None


def conditionally(transactions: Mapping[str, int] | None = None) -> CommitProperties:
    """Commit from the version that was read, or raise `CommitFailedError`. `transactions`: application ids and their
    versions, which the commit sets.
    """
    return CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(app_id, version) for app_id, version in (transactions or {}).items()],
    )


def from_newest(attempt: Callable[[], T], *, what: str) -> T:
    """Call until no other commit took the version that the attempt had read. Errors: `Unavailable` after many."""
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Outrun), stop=tenacity.stop_after_attempt(_TRIES), wait=_PAUSE
    )
    try:
        return retrying(attempt)
    except tenacity.RetryError as error:
        raise Unavailable(
            f"others commit to {what} all the time", hint="Let the other writers of this table pause."
        ) from error


@contextmanager
def table_errors(op: str, *, table: str | None = None) -> Iterator[None]:
    """The library's errors as ours. Errors: `Outrun`, `Unavailable`, `TargetError`."""
    try:
        yield
    except SchemaMismatchError as error:
        raise TargetError(
            _line(error), op=op, table=table, hint="Bring the table's columns to the source's."
        ) from error
    except DeltaError as error:
        text, _, values = _line(error).partition(_PREVIEW)
        hint = next((hint for words, hint in _REFUSALS.items() if words in text), None)
        if hint is not None:
            raise TargetError(text, op=op, table=table, hint=hint, values=values or None) from error
        if isinstance(error, CommitFailedError):
            raise Outrun from error
        raise Unavailable(text, op=op, table=table) from error
    except OSError as error:
        raise Unavailable(_line(error), op=op, table=table) from error


def commit_nothing(table: DeltaTable, transactions: Mapping[str, int]) -> None:
    """A commit of application transactions alone. Errors: the library's."""
    table.create_write_transaction(
        [], mode="append", schema=table.schema(), commit_properties=conditionally(transactions)
    )


def transaction_version(table: DeltaTable, app_id: str) -> int | None:
    """The version that an application last committed to a table."""
    found: int | None = table.transaction_version(app_id)
    return found


def schema_of(table: DeltaTable) -> pa.Schema:
    """Its columns as Arrow has them."""
    return pa.schema(table.schema().to_arrow())


def read_columns(
    table: DeltaTable, name: str, columns: Sequence[str] | None = None, *, predicate: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of the version that is open, as delta-rs itself reads them, in no order, without those that a deletion
    vector deletes. `name`: the table's; `columns`: None for all. Errors: `Unavailable`.
    """
    found = schema_of(table)
    schema = found if columns is None else pa.schema([found.field(column) for column in columns])
    with table_errors("read", table=name):
        for batch in pa.RecordBatchReader.from_stream(table.scan(columns=schema.names, predicate=predicate)):
            yield batch.select(schema.names).cast(schema)


def commit_path(lake: Lake, uri: str, version: int) -> str:
    """The file of a commit, as `Lake.files` takes it. It is gone some time after a checkpoint."""
    return f"{lake.path(uri)}/_delta_log/{version:020d}.json"


def sync(lake: Lake, uri: str, version: int) -> None:
    """Bring a commit to the disk, its data first; a bucket has it there already. What comes after it, in another table,
    then never outlives it. Errors: `Unavailable`.
    """
    if not lake.is_local:
        return
    log = Path(commit_path(lake, uri, version))
    with table_errors("commit"):
        actions = [json.loads(line) for line in log.read_bytes().splitlines()]
        added = [Path(uri, unquote(action["add"]["path"])) for action in actions if "add" in action]
        for path in (*added, *{file.parent for file in added}, log, log.parent, Path(uri), *_folders(lake, uri)):
            _sync(path)


def sync_file(lake: Lake, uri: str) -> None:
    """Bring a file to the disk. Errors: `OSError`."""
    if lake.is_local:
        for path in (Path(uri), *_folders(lake, uri)):
            _sync(path)


def _folders(lake: Lake, uri: str) -> list[Path]:
    """The folders on the way to it, which may be new themselves, the innermost first."""
    return [folder for folder in Path(uri).parents if folder.is_relative_to(lake.root)]


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _line(error: Exception) -> str:
    return " ".join(_COLOUR.sub("", str(error)).split())
