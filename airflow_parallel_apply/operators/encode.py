"""EncodeOperator: a range of a pipeline's log as files that others read."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator, Context
from airflow.sdk.observability import stats

from airflow_parallel_apply.hooks import parameters
from airflow_parallel_apply.task import DEFAULT_RETRIES, DEFAULT_RETRY_DELAY, Guarded

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.encode.export import ExportReport
    from airflow_parallel_apply.pipeline.encode.progress import Encoded

_LINE_SECONDS: Final = 5.0


class EncodeOperator(Guarded, BaseOperator):
    """Writes the changes of a log behind those that a place has, and commits them at once. Returns a report.

    A retry, a clear or a late twin adds nothing: the place's newest manifest says where the next export begins. All of
    the fields are templated and may be text.

    :param pipeline: name of the pipeline whose log it is
    :param place: where the files go: a directory that every worker sees, or a URL such as ``s3://bucket/changes``
    :param format: ``parquet``, ``avro``, ``json``, ``debezium``, ``csv`` or ``arrow``
    :param log_url: directory of the log; empty: below AIRFLOW_HOME, as the pipeline has it
    :param tables: ``{"include": [...], "exclude": [...]}``, patterns over ``schema.table``; empty: all
    :param threads: workers that encode and write side by side
    :param until_seqno: the last transaction to export; empty: the log's last one
    :param texts: columns, as ``schema.table.column``, that keep the source's text
    """

    template_fields: Sequence[str] = (
        "pipeline",
        "place",
        "format",
        "log_url",
        "tables",
        "threads",
        "until_seqno",
        "texts",
    )
    ui_color = "#e7e4f2"

    _next_line = 0.0

    def __init__(
        self,
        *,
        pipeline: str,
        place: str,
        format: str = "parquet",  # noqa: A002  # the word that users know
        log_url: str = "",
        tables: Mapping[str, Sequence[str]] | Sequence[str] | str | None = None,
        threads: int | str = 2,
        until_seqno: int | str = "",
        texts: Sequence[str] | str = (),
        retries: int = DEFAULT_RETRIES,
        retry_delay: timedelta = DEFAULT_RETRY_DELAY,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.pipeline = pipeline
        self.place = place
        self.format = format
        self.log_url = log_url
        self.tables = tables
        self.threads = threads
        self.until_seqno = until_seqno
        self.texts = texts

    def execute(self, context: Context) -> dict[str, Any]:
        return self.guarded(context, self._export).to_json()

    def _export(self) -> ExportReport:
        from airflow_parallel_apply.pipeline.encode.export import ExportOptions, export_changes
        from airflow_parallel_apply.pipeline.encode.formats import Format
        from airflow_parallel_apply.pipeline.log.open import open_reader

        config = parameters.pipeline_config(
            {"pipeline": self.pipeline, "log_url": self.log_url, "tables": self.tables or ["*.*"]}
        )
        texts = self.texts.split(",") if isinstance(self.texts, str) else self.texts
        until = parameters.number("until_seqno", self.until_seqno) if self.until_seqno not in ("", None) else None
        options = ExportOptions(
            format=parameters.choice(Format)("format", self.format),
            tables=config.tables,
            threads=parameters.number("threads", self.threads),
            until_seqno=until,
            texts=tuple(text.strip() for text in texts if text.strip()),
        )
        report = export_changes(
            open_reader(config.log_url), self.place, options, report=self._log_progress, cancelled=lambda: self.killed
        )
        self.log.info("%s", report)
        if report.texts:
            self.log.info("columns that keep the source's text: %s", ", ".join(report.texts))
        tags = {"pipeline": self.pipeline, "format": str(options.format)}
        stats.incr("parallel_apply.exported_rows", report.rows, tags=tags)
        stats.incr("parallel_apply.exported_bytes", report.bytes_, tags=tags)
        return report

    def _log_progress(self, encoded: Encoded) -> None:
        """Every few seconds."""
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _LINE_SECONDS
            self.log.info("exporting: %s", encoded)
