"""Values that a run's steps hand to each other through XCom, where a person may edit them."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.run import OpenedRun


@pytest.mark.parametrize("edited", [{"generation": 7}, "a text", 7, None, []])
def test_an_edited_xcom_is_told_with_what_to_do(edited: object) -> None:
    with pytest.raises(ConfigurationError, match=r"the XCom opened.*Hint: Clear open with everything downstream"):
        OpenedRun.from_json(edited)
