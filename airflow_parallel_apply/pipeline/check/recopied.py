"""Checks that a target holds the copies in favour of which its log passes over changes."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import PassedOver
from airflow_parallel_apply.pipeline.log.readers import read_readers, with_forget_commands
from airflow_parallel_apply.pipeline.model.finding import Finding, Severity, Side, command_line
from airflow_parallel_apply.pipeline.target.protocol import Target


def lost_copies(config: PipelineConfig, target: Target) -> tuple[PassedOver, ...]:
    """Copies that the log names and the target does not hold. Errors: those of both."""
    held = {one.recopy_id for one in target.recopied()}
    return tuple(one for one in open_reader(config.log_url).state().passed_over if one.recopy_id not in held)


def recopy_findings(config: PipelineConfig, target: Target) -> tuple[Finding, ...]:
    """One for each copy that is not there: it was cut off, or the target lost it. Errors: those of both."""
    lost = lost_copies(config, target)
    if not lost:
        return ()
    note = f"Run `{command_line('recopy', (f'{one.schema}.{one.table}' for one in lost), config.pipeline)}`"
    identity = target.identity()
    key = (config.pipeline, identity.server, identity.database)
    readers = () if config.is_served else read_readers(config.log_url)
    if others := [entry for entry in readers if entry.key != key]:
        note = (
            "No copy can be made while others read the log. Forget those that never read it again, since a server was "
            f"upgraded or a database renamed or restored: {with_forget_commands(config.log_url, others)}. {note} then. "
            f"If others still read it, give pipeline {config.pipeline} a log and a slot of its own, and start it anew "
            "there"
        )
    return tuple(
        Finding(
            severity=Severity.ERROR,
            side=Side.TARGET,
            where=f"{one.schema}.{one.table}",
            what=f"the log passes over changes of {one.schema}.{one.table} in favour of a copy that the target does "
            "not hold: it was cut off, or an older state of the target was restored",
            note=note,
        )
        for one in lost
    )
