"""Lanes show a stop in the XCom of `open`, whoever asked for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.xcom import XCom

from airflow_parallel_apply.operators import SparkApplyOperator


@pytest.mark.parametrize(("shown", "warned"), [({"stop": True}, 0), ({"stop": False}, 1), (None, 1)])
def test_a_lane_warns_of_a_stop_that_it_cannot_show_only_where_no_other_one_has_shown_it(
    monkeypatch: pytest.MonkeyPatch, shown: object, warned: int
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 409}))

    warnings: list[object] = []
    monkeypatch.setattr(XCom, "set", refused)
    monkeypatch.setattr(SparkApplyOperator, "log", SimpleNamespace(warning=lambda *words: warnings.append(words)))
    ti = SimpleNamespace(dag_id="shop", run_id="stopped")
    SparkApplyOperator(task_id="apply", pipeline="shop")._show_stop({"ti": ti}, {"stop": True}, lambda: shown)
    assert len(warnings) == warned
