"""Which protocol the groups of a run go by, and whether the target can do what was asked for."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import EpochProtocol, PipelineConfig


def protocol_of(config: PipelineConfig) -> EpochProtocol:
    """The protocol of a run that begins now."""
    if config.commits_in_groups and config.epoch_protocol is EpochProtocol.TWO_PHASE:
        return EpochProtocol.TWO_PHASE
    return EpochProtocol.LEADER_MERGE
