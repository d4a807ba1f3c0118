"""When the transactions of a range of a log committed, and which of them are the initial copy's: `CommitTimes`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.log.beginning import copied_through
from airflow_parallel_apply.pipeline.log.protocol import RowReader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTimes:
    """When some consecutive transactions committed. `seqnos` ascend. Picklable. `copied_through`: up to this seqno they
    are the initial copy's; NO_SEQNO where none of them is.
    """

    seqnos: npt.NDArray[np.int64]
    times: pa.Array
    copied_through: int = NO_SEQNO

    @classmethod
    def of_log(cls, log: RowReader, after_seqno: int, last_seqno: int) -> CommitTimes:
        """Those of the transactions in (after_seqno, last_seqno]."""
        found = log.transactions(after_seqno, last_seqno)
        return cls(
            seqnos=found.column("seqno").to_numpy(),
            times=found.column("commit_time").combine_chunks(),
            copied_through=copied_through(found),
        )

    def of(self, seqnos: pa.Array) -> pa.Array:
        """The commit time of each row's transaction."""
        return self.times.take(pa.array(np.searchsorted(self.seqnos, seqnos.to_numpy())))
