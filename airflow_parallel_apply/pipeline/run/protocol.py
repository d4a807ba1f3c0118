"""Chooses the protocol of a run's groups, and finds whether the target can do what was asked for."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import EpochProtocol, PipelineConfig
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.steps import Capability


def protocol_of(config: PipelineConfig, target: Target) -> EpochProtocol:
    """The protocol of a run that begins now: `auto` is `two_phase` where the target can prepare, since it is the faster
    one (docs/consistency.md has the numbers), and `leader_merge` elsewhere. Errors: the target's.
    """
    if not config.commits_in_groups or config.epoch_protocol is EpochProtocol.LEADER_MERGE:
        return EpochProtocol.LEADER_MERGE
    if config.epoch_protocol is EpochProtocol.TWO_PHASE or _can_prepare(config, target):
        return EpochProtocol.TWO_PHASE
    return EpochProtocol.LEADER_MERGE


def _can_prepare(config: PipelineConfig, target: Target) -> bool:
    return Capability.PREPARE in target.capabilities and not target.branch_findings(config.channels)
