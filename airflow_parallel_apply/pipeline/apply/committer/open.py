"""Choosing the committer of a lane's units: by the kinds of tasks that the coordinator feeds under a consistency, and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_parallel_apply.pipeline.apply.committer.channel import ChannelCommitter
from airflow_parallel_apply.pipeline.apply.committer.group import GroupCommitter
from airflow_parallel_apply.pipeline.apply.committer.protocol import Committer
from airflow_parallel_apply.pipeline.apply.lane_context import LaneContext
from airflow_parallel_apply.pipeline.coordinate.tasks import GROUP_PARTS, Kind


def open_committers(context: LaneContext) -> Mapping[Kind, Committer]:
    """Return what makes the units of a lane's channels visible."""
    groups = GroupCommitter(context)
    return {Kind.BRANCH: ChannelCommitter(context), **dict.fromkeys(GROUP_PARTS, groups)}
