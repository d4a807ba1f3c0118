"""Holds a pipeline to what its target can do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from airflow_parallel_apply.pipeline.config import DdlPolicy, EpochProtocol, PipelineConfig
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, new_finding
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.steps import Capability

_finding: Final = partial(new_finding, Side.TARGET, "target")


def findings_at(target: Target, config: PipelineConfig, expected: Expectation) -> tuple[Finding, ...]:
    """Everything that is otherwise than the pipeline expects: what the target cannot do, and what it has not. Errors:
    the pipeline's.
    """
    return (*lacking(config, target.capabilities), *branch_findings(target, config), *target.findings(expected))


def branch_findings(target: Target, config: PipelineConfig) -> tuple[Finding, ...]:
    """Find what keeps the target from preparing a group's branches, where that was asked for by name: `auto` goes by
    the other protocol there. Errors: the target's.
    """
    asked = config.commits_in_groups and config.epoch_protocol is EpochProtocol.TWO_PHASE
    return target.branch_findings(config.channels) if asked and Capability.PREPARE in target.capabilities else ()


def lacking(config: PipelineConfig, capabilities: frozenset[Capability]) -> Iterator[Finding]:
    """Find what a target cannot do of all that the pipeline asks for, and that its source may send."""
    if config.ddl is DdlPolicy.APPLY and Capability.DEFINE not in capabilities:
        yield _finding(
            "the target cannot change its tables' definitions, which ddl=apply asks for",
            note="Use ddl=skip and change them by hand, or ddl=refuse.",
        )
    asked = config.commits_in_groups and config.epoch_protocol is EpochProtocol.TWO_PHASE
    if asked and Capability.PREPARE not in capabilities:
        yield _finding(
            "the target prepares no transactions, which epoch_protocol=two_phase asks for",
            note="Use epoch_protocol=leader_merge, which needs none.",
        )
    if Capability.TRUNCATE not in capabilities:
        yield _finding(
            "the target cannot follow a TRUNCATE: the first one stops the run",
            severity=Severity.WARNING,
            note="Delete rows at the source instead.",
        )
    if Capability.REPLAY not in capabilities:
        yield _finding(
            "the target cannot replay changes one by one: what it refuses as a set stops the run",
            severity=Severity.WARNING,
        )
