"""The roots of lakes that an address may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.target.delta.place import lake_of
from tests.support.lake import LakeRig
from tests.support.lake_lane import TABLES


@pytest.mark.parametrize("url", ["delta://{}/a%2520b", "delta+s3://key:secret@lake/a%20b"])
def test_a_name_that_delta_rs_would_take_for_another_is_refused(tmp_path: Path, url: str) -> None:
    """It would write elsewhere than it reads."""
    with pytest.raises(ConfigurationError, match=r"may have no %.*a%20b") as refused:
        lake_of(url.format(tmp_path))
    assert "secret" not in str(refused.value)


def test_an_address_that_would_end_within_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write %23"):
        lake_of("delta:///lake/shop#2")


@pytest.mark.parametrize("name", ["a b", "100%", "ä?#+"])
def test_other_names_are_those_of_directories(tmp_path: Path, name: str) -> None:
    escaped = name.replace("%", "%25").replace("?", "%3F").replace("#", "%23").replace(" ", "%20")
    LakeRig(f"delta://{tmp_path}/{escaped}", TABLES).begin()
    assert [path.name for path in tmp_path.iterdir()] == [name]
