"""EncodeOperator: a range of a pipeline's log, or the rows of a query, as files that others read or as messages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.sdk import BaseOperator, Context
from airflow.sdk.observability import stats

from airflow_parallel_apply.hooks import connections, parameters
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.task import DEFAULT_RETRIES, DEFAULT_RETRY_DELAY, Guarded, interval_of, lasting_run_id

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.encode.progress import Encoded
    from airflow_parallel_apply.pipeline.export import ExportOptions, ExportReport

_LINE_SECONDS: Final = 5.0
_TOPICS: Final = "kafka"
_ALL: Final = ("*.*",)


class EncodeOperator(Guarded, BaseOperator):
    """Adds the changes of a log behind those that a place has, or the rows of a query, all at once. Returns a report.

    A retry, a clear or a late twin adds nothing: a place knows how far it has a log, and which queries' exports. All of
    the fields are templated and may be text.

    :param pipeline: name of the pipeline whose log it is; with ``sql`` for statistics alone
    :param place: a directory that every worker sees, a URL such as ``s3://bucket/changes``, or topics, such as
        ``kafka://broker:9092/prefix``
    :param place_conn_id: instead of ``place`` a connection of type ``parallel_apply_kafka``, which keeps passwords
    :param format: ``parquet``, ``avro``, ``json``, ``debezium``, ``csv`` or ``arrow``; topics take ``json``,
        ``debezium`` and ``avro``; empty: ``parquet``, or as the topics' connection says
    :param log_url: directory of the log; empty: below AIRFLOW_HOME, as the pipeline has it
    :param tables: ``{"include": [...], "exclude": [...]}``, patterns over ``schema.table``; empty: all
    :param threads: workers that encode and write side by side
    :param until_seqno: the last transaction to export; empty: the log's last one
    :param texts: columns, as ``schema.table.column``, that keep the source's text
    :param sql: a query whose rows are exported instead of a log's changes, run by ``source_conn_id``
    :param source_conn_id: the database that runs ``sql``, a connection of type ``postgres``
    :param table: what the query's rows are called, as ``schema.table``: names a folder, or a topic
    :param key: columns of the query that are the key of its messages
    :param export_id: a query's export of this id is there once; by default the task's instance, through all its tries
    """

    template_fields: Sequence[str] = (
        "pipeline",
        "place",
        "place_conn_id",
        "format",
        "log_url",
        "tables",
        "threads",
        "until_seqno",
        "texts",
        "sql",
        "source_conn_id",
        "table",
        "key",
        "export_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"sql": "sql"}
    template_ext: Sequence[str] = (".sql",)
    ui_color = "#e7e4f2"

    _next_line = 0.0

    def __init__(
        self,
        *,
        pipeline: str = "",
        place: str = "",
        place_conn_id: str = "",
        format: str = "",  # noqa: A002  # the word that users know
        log_url: str = "",
        tables: Mapping[str, Sequence[str]] | Sequence[str] | str | None = None,
        threads: int | str = 2,
        until_seqno: int | str = "",
        texts: Sequence[str] | str = (),
        sql: str = "",
        source_conn_id: str = "",
        table: str = "query.rows",
        key: Sequence[str] | str = (),
        export_id: str | None = None,
        retries: int = DEFAULT_RETRIES,
        retry_delay: timedelta = DEFAULT_RETRY_DELAY,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.pipeline = pipeline
        self.place = place
        self.place_conn_id = place_conn_id
        self.format = format
        self.log_url = log_url
        self.tables = tables
        self.threads = threads
        self.until_seqno = until_seqno
        self.texts = texts
        self.sql = sql
        self.source_conn_id = source_conn_id
        self.table = table
        self.key = key
        self.export_id = export_id

    def execute(self, context: Context) -> dict[str, Any]:
        return self.guarded(context, lambda: self._export(context)).to_json()

    def _export(self, context: Context) -> ExportReport:
        report = self._exported_query(context) if self.sql else self._exported_changes()
        self.log.info("%s", report)
        if report.texts:
            self.log.info("columns that keep the source's text: %s", ", ".join(report.texts))
        tags = {"pipeline": self.pipeline or self.table, "format": self.format or "default"}
        stats.incr("parallel_apply.exported_rows", report.rows, tags=tags)
        stats.incr("parallel_apply.exported_bytes", report.bytes_, tags=tags)
        return report

    def _exported_changes(self) -> ExportReport:
        from airflow_parallel_apply.pipeline.export import export_changes
        from airflow_parallel_apply.pipeline.log.open import open_reader

        if not self.pipeline:
            raise ConfigurationError(
                "neither pipeline nor sql is given", op="export", hint="Name the pipeline whose log it is, or a query."
            )
        config = parameters.pipeline_config({"pipeline": self.pipeline, "log_url": self.log_url})
        return export_changes(
            open_reader(config.log_url),
            self._place(),
            self._options(),
            report=self._log_progress,
            cancelled=lambda: self.killed,
        )

    def _exported_query(self, context: Context) -> ExportReport:
        from airflow_parallel_apply.pipeline.export import QueryOptions, export_query

        if self.until_seqno not in ("", None) or not self.source_conn_id:
            raise ConfigurationError(
                "a query needs source_conn_id, and has no until_seqno",
                op="export",
                hint="Name the connection of the database that runs it.",
            )
        # A DAG may render templates to what they look like: a date to a number.
        export_id = _task_id(context) if self.export_id is None else str(self.export_id)
        query = QueryOptions(sql=self.sql, export_id=export_id, table=self.table, key=_words(self.key))
        return export_query(
            connections.database(self.source_conn_id, parameter="source_conn_id"),
            query,
            self._place(),
            self._options(),
            report=self._log_progress,
            cancelled=lambda: self.killed,
        )

    def _options(self) -> ExportOptions:
        from airflow_parallel_apply.pipeline.encode.formats import Format
        from airflow_parallel_apply.pipeline.export import ExportOptions

        until = parameters.number("until_seqno", self.until_seqno) if self.until_seqno not in ("", None) else None
        return ExportOptions(
            format=parameters.choice(Format)("format", self.format) if self.format else None,
            tables=parameters.table_patterns("tables", self.tables or (), otherwise=_ALL),
            threads=parameters.number("threads", self.threads),
            until_seqno=until,
            texts=_words(self.texts),
        )

    def _place(self) -> str:
        """The place's URL, with its secrets."""
        if bool(self.place) == bool(self.place_conn_id):
            raise ConfigurationError(
                "exactly one of place and place_conn_id says where the export goes",
                op="export",
                hint="Give place, a directory or a URL, or place_conn_id, a connection of type parallel_apply_kafka.",
            )
        if self.place:
            return parameters.place("place", self.place)
        found = connections.database(self.place_conn_id, parameter="place_conn_id")
        if found.scheme != _TOPICS:
            raise ConfigurationError(
                f"place_conn_id: {self.place_conn_id!r} is no connection to topics",
                op="export",
                hint="Name one of type parallel_apply_kafka, or give place.",
            )
        return found.url

    def _log_progress(self, encoded: Encoded) -> None:
        """Every few seconds."""
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + _LINE_SECONDS
            self.log.info("exporting: %s", encoded)


def _task_id(context: Context) -> str:
    """The task's instance, of this run and of none that gets its id, and of its data interval."""
    task, interval = context["ti"], interval_of(context.get("data_interval_start"), context.get("data_interval_end"))
    instance = f"{lasting_run_id(context)}/{task.task_id}/{task.map_index}"
    if interval is None:
        return instance
    return f"{instance}@{interval.start.astimezone(UTC).isoformat()}/{interval.end.astimezone(UTC).isoformat()}"


def _words(value: Sequence[str] | str) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    return tuple(word.strip() for word in words if word.strip())
