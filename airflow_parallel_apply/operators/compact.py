"""CompactOperator: the feed of a directory of files, folded into a snapshot of each table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Context

from airflow_parallel_apply.hooks import parameters
from airflow_parallel_apply.task import DEFAULT_RETRIES, DEFAULT_RETRY_DELAY, Guarded

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.compact.protocol import CompactReport


class CompactOperator(Guarded, BaseOperator):
    """Folds the changes that a pipeline's directory of files has into a snapshot: the current rows of each table.
    Returns a report.

    It may run beside the pipeline. A retry, a clear or a late twin finds the snapshot made. All of the fields are
    templated and may be text.

    :param pipeline: name of the pipeline that feeds the directory
    :param target_conn_id: the directory, a connection of type ``parallel_apply_files``
    :param log_url: directory of the log; empty: below AIRFLOW_HOME, as the pipeline has it
    :param until_seqno: the last transaction to fold; empty: the last one that every channel has
    :param memory_mb: MB of rows that are folded at a time
    :param remove: also remove the feed's files that a snapshot has, and former snapshots
    :param grace_hours: with ``remove``: only what a snapshot that is so old has taken the place of
    """

    template_fields: Sequence[str] = (
        "pipeline",
        "target_conn_id",
        "log_url",
        "until_seqno",
        "memory_mb",
        "remove",
        "grace_hours",
    )
    ui_color = "#e7e4f2"

    def __init__(
        self,
        *,
        pipeline: str,
        target_conn_id: str,
        log_url: str = "",
        until_seqno: int | str = "",
        memory_mb: int | str = 256,
        remove: bool | str = False,
        grace_hours: int | str = 24,
        retries: int = DEFAULT_RETRIES,
        retry_delay: timedelta = DEFAULT_RETRY_DELAY,
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.pipeline = pipeline
        self.target_conn_id = target_conn_id
        self.log_url = log_url
        self.until_seqno = until_seqno
        self.memory_mb = memory_mb
        self.remove = remove
        self.grace_hours = grace_hours

    def execute(self, context: Context) -> dict[str, Any]:
        return self.guarded(context, self._compact).to_json()

    def _compact(self) -> CompactReport:
        from airflow_parallel_apply.hooks.connections import database
        from airflow_parallel_apply.pipeline.compact.open import compact
        from airflow_parallel_apply.pipeline.compact.protocol import MIB, CompactOptions
        from airflow_parallel_apply.pipeline.log.open import open_reader

        config = parameters.pipeline_config({"pipeline": self.pipeline, "log_url": self.log_url, "tables": ["*.*"]})
        until = parameters.number("until_seqno", self.until_seqno) if self.until_seqno not in ("", None) else None
        options = CompactOptions(
            until_seqno=until,
            memory_bytes=parameters.number("memory_mb", self.memory_mb) * MIB,
            remove=parameters.flag("remove", self.remove),
            grace=timedelta(hours=parameters.number("grace_hours", self.grace_hours)),
        )
        report = compact(
            database(self.target_conn_id, parameter="target_conn_id"),
            options,
            log=open_reader(config.log_url),
            report=lambda table: self.log.info("folding %s", table),
            cancelled=lambda: self.killed,
        )
        self.log.info("%s", report)
        for former in report.replaced:
            self.log.warning("left out: %s, which another table has replaced", former)
        return report
