"""The options of an export, checked once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.splitter import check_count
from airflow_parallel_apply.pipeline.errors import ConfigurationError

MIB = 2**20

_TABLE: Final = re.compile(r"[^.]+\.[^.]+")
_MAX_ID: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of any export. `format`: None: that of the place, Parquet for files. `texts`: columns, as
    schema.table.column, that keep the source's text. `until_seqno`: the last transaction; None: the log's last one.
    `window_bytes`: values that are read before they are split; workers and the reader ahead of them hold up to three
    times as many. Errors: `ConfigurationError`.
    """

    format: Format | None = None
    tables: TablePatterns = field(default_factory=lambda: TablePatterns(include=("*.*",)))
    threads: int = 2
    until_seqno: int | None = None
    texts: tuple[str, ...] = ()
    window_bytes: int = 64 * MIB
    attempts: int = 3
    """How often a file is written that the place refuses for a moment."""

    def __post_init__(self) -> None:
        check_count(self.threads, "threads")
        for name in ("window_bytes", "attempts"):
            if getattr(self, name) < 1:
                raise ConfigurationError(
                    f"parameter {name}: {getattr(self, name)!r} is not usable", hint=f"{name} takes a positive number."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """A query, and how its rows are called. `export_id`: an export of this id is there once. `table`: schema.table, by
    which a folder or a topic is named. `key`: the columns of a message's key. Errors: `ConfigurationError`.
    """

    sql: str
    export_id: str
    table: str = "query.rows"
    key: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, is_right, takes in (
            ("sql", bool(self.sql.strip().strip(";")), "a query, such as SELECT * FROM orders"),
            ("export_id", 0 < len(self.export_id) <= _MAX_ID, f"a text of 1 to {_MAX_ID} characters"),
            ("table", bool(_TABLE.fullmatch(self.table)), "a name such as sales.daily"),
        ):
            if not is_right:
                raise ConfigurationError(
                    f"parameter {name}: {getattr(self, name)!r} is not usable", hint=f"{name} takes {takes}."
                )
