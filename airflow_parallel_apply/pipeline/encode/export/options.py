"""The options of an export, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.splitter import check_count
from airflow_parallel_apply.pipeline.errors import ConfigurationError

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """`texts`: columns, as schema.table.column, that keep the source's text. `until_seqno`: the last transaction; None:
    the log's last one. `window_bytes`: values of the log that are read before they are split.
    Errors: `ConfigurationError`.
    """

    format: Format = Format.PARQUET
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
