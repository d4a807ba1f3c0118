"""Choosing a lane's committer: by the pipeline's consistency, and nowhere else."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.apply.committer.channel import ChannelCommitter
from airflow_parallel_apply.pipeline.apply.committer.protocol import Committer
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.config import Consistency


def open_committer(context: LaneContext) -> Committer:
    """Return what makes the units of a lane's channels visible."""
    match context.config.consistency:
        case Consistency.CHANNEL:
            return ChannelCommitter(context)
