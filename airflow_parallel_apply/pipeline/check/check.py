"""Look at both sides and the log as `prepare` would, but change nothing and go on past the first trouble.

A side that cannot be asked is a finding itself, and the other side is looked at all the same. The tables at the target
are compared with those of the source, so that part needs both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from airflow_parallel_apply.pipeline.capture.open import open_capture
from airflow_parallel_apply.pipeline.check.beginning import beginning_findings
from airflow_parallel_apply.pipeline.check.capabilities import findings_at
from airflow_parallel_apply.pipeline.check.directory import log_findings
from airflow_parallel_apply.pipeline.check.expected import (
    expected_at_target,
    sent_to_target,
    settled_at_target,
    successors_at_target,
    unbegun_at_target,
)
from airflow_parallel_apply.pipeline.check.history import history_findings
from airflow_parallel_apply.pipeline.check.loop import meeting_findings
from airflow_parallel_apply.pipeline.check.open import inheritance_findings, type_findings
from airflow_parallel_apply.pipeline.check.recopied import recopy_findings
from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig, QueueEndpoint, Start
from airflow_parallel_apply.pipeline.copy.open import copy_findings, goes_into_log, leading_on, read_progress
from airflow_parallel_apply.pipeline.errors import ConfigurationError, ParallelApplyError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.log.open import log_exists, open_reader
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, errors
from airflow_parallel_apply.pipeline.model.position import Position, furthest, low_watermark
from airflow_parallel_apply.pipeline.model.reference import Reference
from airflow_parallel_apply.pipeline.partition.open import routing_findings, routing_of
from airflow_parallel_apply.pipeline.rare_collection import rare_collection
from airflow_parallel_apply.pipeline.stream.address import place_of_log
from airflow_parallel_apply.pipeline.target.expectation import Expectation, Successor, names_of
from airflow_parallel_apply.queue.model import QueueError, QueueMisconfigured
from airflow_parallel_apply.queue.open import look_at_queue
from airflow_parallel_apply.service.address import is_service


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The findings, errors first, and the tables that were looked at."""

    pipeline: str
    findings: tuple[Finding, ...]
    tables: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        """True if a run may start; there may be warnings all the same."""
        return not errors(self.findings)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "pipeline": self.pipeline,
            "ok": self.is_good,
            "tables": list(self.tables),
            "findings": [finding.to_json() for finding in self.findings],
        }


@rare_collection()
def check_pipeline(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    *,
    queue: QueueEndpoint | None = None,
    elsewhere: Callable[[], Sequence[Finding]] = tuple,
) -> Checked:
    """`queue`: where the pipeline's is, if not in the target. `elsewhere` looks from where the rows are loaded, such as
    Spark's executors.
    """
    findings: list[Finding] = []
    relations: tuple[Relation, ...] = ()
    references: tuple[Reference, ...] = ()
    try:
        with closing(open_capture(source, config)) as reading:
            findings += reading.findings()
            relations, references = reading.source.relations(), reading.source.references()
    except ParallelApplyError as error:
        findings.append(_unasked(Side.SOURCE, source, error))
    findings += _routing_findings(config, relations)
    findings += log_findings(config)
    try:
        findings += _target_findings(config, source, target, relations, references)
        findings += meeting_findings(config.pipeline, source, target, {relation.name for relation in relations})
    except ParallelApplyError as error:
        findings.append(_unasked(Side.TARGET, target, error))
    findings += _queue_findings(queue)
    try:
        findings += elsewhere()
    except ParallelApplyError as error:
        findings.append(
            Finding(severity=Severity.ERROR, side=Side.SPARK, where="Spark", what=error.message, note=error.hint or "")
        )
    findings = [
        replace(finding, note=leading_on(finding.note, source, target)).named(config.pipeline) for finding in findings
    ]
    found = errors(findings)
    warnings = [finding for finding in findings if finding not in found]
    return Checked(
        pipeline=config.pipeline,
        findings=(*dict.fromkeys((*found, *warnings)),),
        tables=tuple(relation.name for relation in relations),
    )


def _routing_findings(config: PipelineConfig, relations: Sequence[Relation]) -> Sequence[Finding]:
    try:
        return routing_findings(routing_of(config), relations)
    except ConfigurationError as error:
        what, note = error.message, error.hint or ""
        return (Finding(severity=Severity.ERROR, side=Side.SOURCE, where=config.partitioner, what=what, note=note),)


def _target_findings(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    relations: Sequence[Relation],
    references: Sequence[Reference],
) -> Sequence[Finding]:
    with closing(open_pipeline(target, config.pipeline)) as session:
        writing = session.target
        # Who may not look into the schema cannot be told either whether the pipeline is in it.
        general = errors(writing.findings(Expectation(channels=config.channels)))
        is_closed = any(finding.where.startswith("schema ") for finding in general)
        state = session.ledger.state() if not is_closed else None
        is_new = state is None and not is_closed
        copies = is_new and config.start is Start.COPY
        # What a copy that was cut off left is its own to remove.
        is_untouched = is_new and read_progress(target, config.pipeline) is None
        expected = relations if is_new else expected_at_target(config, relations)
        makes_tables = copies and config.create_tables and not goes_into_log(source, target)
        settled = tuple(relations) if is_new else ()
        unbegun: tuple[Relation, ...] = ()
        successors: tuple[Successor, ...] = ()
        late: tuple[Relation, ...] = ()
        positions: Sequence[Position] = ()
        if state is not None:
            positions = writing.positions() if writing.routing_digest() else ()
            settled = settled_at_target(config, relations, positions)
            unbegun = unbegun_at_target(config, relations, furthest(positions))
            successors = successors_at_target(config, relations, furthest(positions))
            late = unbegun_at_target(config, relations, low_watermark(positions))
        findings = (
            *session.findings(),
            *(() if is_closed or makes_tables else type_findings(config, source, target, relations, expected=expected)),
            *findings_at(
                writing,
                config,
                Expectation(
                    channels=config.channels,
                    tables=tuple(expected),
                    settled=settled,
                    unbegun=unbegun,
                    successors=successors,
                    references=tuple(references),
                    altered=tuple(relations) if config.ddl is DdlPolicy.APPLY else (),
                    followed=names_of(relations),
                    renames=config.ddl is DdlPolicy.APPLY,
                    are_empty=is_untouched and config.start is not Start.EQUAL,
                    are_new=is_new,
                    may_lack_tables=makes_tables,
                ),
            ),
        )
        if (is_untouched and relations) or late:
            among = None if is_new else late
            sent = partial(sent_to_target, config, low_watermark(positions)) if late else tuple
            findings += inheritance_findings(config, source, target, relations, unbegun=among, sent=sent)
        if copies:
            findings += copy_findings(config, source, target, relations)
        # A log begins where its directory is.
        if is_new and relations and (config.log_directory or not config.is_served):
            beginning = config.at_directory()
            with closing(open_capture(source, beginning)) as looking:
                findings += beginning_findings(
                    beginning, writing, looking.has_changes, copies_into_log=goes_into_log(source, target)
                )
        if state is None or not log_exists(config.log_url):
            return findings
        found = open_reader(config.log_url).identity.log_id
        if found == state.log_id:
            return (
                *findings,
                *recopy_findings(config, writing),
                *history_findings(config.log_url, session, config.pipeline, place=target.place),
            )
        return (
            *findings,
            Finding(
                severity=Severity.ERROR,
                side=Side.LOG,
                where=place_of_log(config.log_url),
                what=f"the target has applied log {state.log_id} so far, {place_of_log(config.log_url)} is log {found}",
                note="Use the pipeline's own log_url, or another pipeline name for another log.",
            ),
        )


def _queue_findings(queue: QueueEndpoint | None) -> Sequence[Finding]:
    """Find out whether the queue answers; a queue in the target's database is looked at with the target."""
    if queue is None:
        return ()
    try:
        look_at_queue(queue.dsn)
    except QueueError as error:
        # A run makes the tables that a database lacks, if the role may.
        lacks_tables = isinstance(error, QueueMisconfigured) and not is_service(queue.dsn)
        severity = Severity.WARNING if lacks_tables else Severity.ERROR
        return (Finding(severity=severity, side=Side.QUEUE, where=queue.place, what=str(error)),)
    return ()


def _unasked(side: Side, endpoint: Endpoint, error: ParallelApplyError) -> Finding:
    return Finding(
        severity=Severity.ERROR, side=side, where=endpoint.conn_id, what=error.message, note=error.hint or ""
    )
