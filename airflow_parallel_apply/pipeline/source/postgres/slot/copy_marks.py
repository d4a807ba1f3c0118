"""Marks of copies: messages by which the source proves that it still has what tables were copied from: `CopyMarks`.

A copy shows the source at a moment to which the log comes later. A source that goes back to before that moment, and not
behind what the log has, would leave what it lost at the target, and its own changes below would be passed over. So a
copy is named in the WAL behind its moment, and no read comes past that place without the message::

    WAL    ── what the log has ──── the copy's moment ──── message that names it ──── …
    read                      └──────────────── has to bring the message ─────────────▶

Once its tables are copied again, nothing is passed over in favour of such a copy: the names and oids of the time that
the source lost may be other tables' by now.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.log.protocol import LogState, PassedOver
from airflow_parallel_apply.pipeline.model.finding import command_line, listed
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.postgres.lsn import lsn_text
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import COPIED_PREFIX, Slot
from airflow_parallel_apply.pipeline.source.postgres.wire.cells import Wire
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import parse_message

_MESSAGE = ord("M")


class CopyMarks:
    """The copies of a log whose messages lie behind what a read of it sends again at first."""

    def __init__(self, log: LogState, config: PipelineConfig) -> None:
        self._config = config
        known = max((log.place.release_offset, *log.released))
        self._missing = [one for one in log.passed_over if one.marked_offset > known]

    def undone(self, slot: Slot, log: LogState) -> tuple[PassedOver, ...]:
        """All that the log passes over in favour of copies that the source has lost. Looks at what the slot sends, and
        advances nothing. Errors: `Unavailable` while somebody reads the slot; the drivers'.
        """
        ids = {one.recopy_id for one in self._missing}
        if ids:
            ids -= slot.named_copies(max(one.marked_offset for one in self._missing))
        return tuple(one for one in log.passed_over if one.recopy_id in ids)

    def see(self, messages: pa.BinaryArray) -> None:
        """The next messages of the read."""
        if not self._missing:
            return
        wire = Wire(messages)
        for index in np.flatnonzero(wire.data[wire.starts] == _MESSAGE).tolist():
            message = parse_message(wire.message(index))
            if message.prefix == COPIED_PREFIX:
                self._missing = [one for one in self._missing if one.recopy_id.encode() != message.content]

    def require(self, reached: Offset) -> None:
        """That the read brought what lies below the offset that it came to. Errors: `SourceError`."""
        self._refuse([one for one in self._missing if one.marked_offset <= reached])

    def require_wal(self, end: Offset) -> None:
        """That the WAL, which ends here, has places for them. Errors: `SourceError`."""
        self._refuse([one for one in self._missing if one.marked_offset > end])

    def _refuse(self, lost: Sequence[PassedOver]) -> None:
        if not lost:
            return
        names = [f"{one.schema}.{one.table}" for one in lost]
        raise SourceError(
            "the source was restored from an older copy, or replaced by a server that is behind: it lost rows that "
            f"{listed(names)} had at {lsn_text(lost[0].below_offset)}, where they were copied anew",
            op="capture",
            pipeline=self._config.pipeline,
            table=names[0],
            hint=f"Is this the right server? If it is, run `{command_line('recopy', names)}`: it copies them as they "
            "are now.",
        )
