"""Where a run ends: a frozen LSN, and the seqno that it turns out to be (law 11)."""

from __future__ import annotations

import re
from typing import Final

import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.event import NO_SEQNO
from airflow_parallel_apply.pipeline.log.protocol import LogReader

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def parse_lsn(text: str) -> int:
    """PostgreSQL's `X/Y` as an integer. Errors: `ConfigurationError`."""
    found = _LSN.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(
            f"parameter until: {text!r} is not usable",
            hint="until takes an LSN such as 0/16B3748, or nothing: everything committed when the run first opens.",
        )
    return (int(found.group(1), 16) << 32) | int(found.group(2), 16)


def last_seqno_at(log: LogReader, until_lsn: int) -> int | None:
    """The last transaction that ended at or below an LSN; None while the log is not captured that far."""
    state = log.state()
    if state.captured_lsn < until_lsn:
        return None
    for segment in reversed(state.segments):
        transactions = log.transactions(segment.first_seqno - 1, segment.last_seqno)
        inside = transactions.filter(pc.less_equal(transactions.column("end_lsn"), until_lsn))
        if inside.num_rows:
            return int(pc.max(inside.column("seqno")).as_py())
    return NO_SEQNO
