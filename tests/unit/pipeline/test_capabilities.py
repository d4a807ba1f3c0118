"""A pipeline is held to what its target can do."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.check.capabilities import findings_at
from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.target.expectation import Expectation, require_applicable
from tests.support.in_memory.target import MemoryTarget
from tests.support.in_memory.target_data import TargetData


class _MergesOnly(MemoryTarget):
    capabilities = frozenset()


def found(target: MemoryTarget, ddl: DdlPolicy) -> list[str]:
    config = PipelineConfig(pipeline="p", log_url="/log", ddl=ddl)
    findings = findings_at(target, config, Expectation(channels=4))
    return [finding.what for finding in require_applicable(findings, op="check")]


def test_ddl_is_refused_where_the_target_cannot_follow_it() -> None:
    target = MemoryTarget(TargetData())
    with pytest.raises(ConfigurationError, match=r"ddl=apply.*ddl=skip"):
        found(target, DdlPolicy.APPLY)
    assert found(target, DdlPolicy.REFUSE) == []


def test_what_would_stop_a_run_one_day_is_told() -> None:
    told = found(_MergesOnly(TargetData()), DdlPolicy.REFUSE)
    assert ["TRUNCATE" in what for what in told] == [True, False]
