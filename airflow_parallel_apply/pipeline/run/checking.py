"""The checks of every run, whatever was checked before it, and their reports."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.check.capabilities import findings_at
from airflow_parallel_apply.pipeline.check.directory import directory_findings
from airflow_parallel_apply.pipeline.check.expected import (
    expected_at_target,
    sent_to_target,
    settled_at_target,
    successors_at_target,
    unbegun_at_target,
)
from airflow_parallel_apply.pipeline.check.open import inheritance_findings
from airflow_parallel_apply.pipeline.check.recopied import recopy_findings
from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.log.open import log_exists
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, refuse
from airflow_parallel_apply.pipeline.model.position import furthest, low_watermark
from airflow_parallel_apply.pipeline.partition.open import check_routing, routing_of
from airflow_parallel_apply.pipeline.target.expectation import Expectation, names_of, require_applicable
from airflow_parallel_apply.pipeline.target.protocol import Target

_logger = logging.getLogger(__name__)


def check_run(
    config: PipelineConfig, capture: Capture, target: Target, source_end: Endpoint, target_end: Endpoint
) -> tuple[Relation, ...]:
    """Both sides, as `open` finds them. Returns the tables of which the target is to have no rows yet. Errors:
    `ConfigurationError`, `TargetError`, with all that are.
    """
    pipeline = config.pipeline
    require_recopied(config, target)
    warnings = refuse(capture.findings(), place=f"the source {source_end.place}", op="open", pipeline=pipeline)
    relations = capture.source.relations()
    expected = expected_at_target(config, relations)
    positions = target.positions()
    unbegun = unbegun_at_target(config, relations, furthest(positions))
    looked_for = Expectation(
        channels=config.channels,
        tables=expected,
        settled=settled_at_target(config, relations, positions),
        unbegun=unbegun,
        successors=successors_at_target(config, relations, furthest(positions)),
        references=capture.source.references(),
        followed=names_of(relations),
        renames=config.ddl is DdlPolicy.APPLY,
    )
    warnings += require_applicable(findings_at(target, config, looked_for), op="open", pipeline=pipeline)
    # Another channel may be ahead of that of its rows.
    applied_seqno = low_watermark(positions)
    late = unbegun_at_target(config, relations, applied_seqno)
    if late:
        sent = partial(sent_to_target, config, applied_seqno)
        unlike = inheritance_findings(config, source_end, target_end, relations, unbegun=late, sent=sent)
        warnings += refuse(unlike, place=f"the target {target_end.place}", op="open", pipeline=pipeline)
    check_routing(routing_of(config, target.colocation(config.tables)), expected)
    tell(warnings)
    return unbegun


def require_recopied(config: PipelineConfig, target: Target) -> None:
    """That the target holds the copies in favour of which the log passes over changes. Errors: `TargetError`."""
    found = recopy_findings(config, target)
    if found:
        raise TargetError("; ".join(one.what for one in found), op="open", pipeline=config.pipeline, hint=found[0].note)


def require_place_for_log(config: PipelineConfig) -> None:
    """A first run makes its log last, and a copy before it may take hours. Errors: `ConfigurationError`."""
    if not log_exists(config.log_url):
        refuse(directory_findings(config.log_url), place="the log", op="prepare", pipeline=config.pipeline)


def tell(warnings: Iterable[Finding]) -> None:
    """In the log of whatever task this is, each once."""
    for warning in dict.fromkeys(warnings):
        _logger.warning("%s", warning)
