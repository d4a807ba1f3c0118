"""Compacting what a target keeps, by the scheme of its endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from airflow_parallel_apply.pipeline.compact.protocol import CompactOptions, CompactReport
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.schemes import Schemes

COMPACTIONS: Final = Schemes(
    thing="compaction",
    group="airflow_parallel_apply.compactions",
    ours={"files": "airflow_parallel_apply.pipeline.compact.files.compaction:compact_directory"},
)


def compact(
    endpoint: Endpoint,
    options: CompactOptions,
    *,
    log: LogReader,
    report: Callable[[str], None] = lambda _line: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> CompactReport:
    """Fold the feed at an endpoint into a snapshot of each table. It may run beside the pipeline, and beside another
    compaction, of which one counts. `log`: the pipeline's, for its definitions. `report`: told what is being done.

    Errors: `ConfigurationError` for a kind that is not compacted; `EncodeError` for a feed that does not tell what a
    row holds; `Unavailable`, also when cancelled. Whatever it raises, no snapshot was made.
    """
    found: CompactReport = COMPACTIONS.load(endpoint.scheme)(
        endpoint, options, log=log, report=report, cancelled=cancelled
    )
    return found
