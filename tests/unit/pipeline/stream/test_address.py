"""The directory of a log by its URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.stream.address import log_path


@pytest.mark.parametrize("url", ["/mnt/log", "file:/mnt/log", "file:///mnt/log", "file://localhost/mnt/log"])
def test_every_form_of_a_directory_s_url_names_the_same_one(url: str) -> None:
    assert log_path(url) == Path("/mnt/log")


@pytest.mark.parametrize("url", ["s3://lake/log", "s3:/lake/log", "dbfs:/lake/log", "file://host/mnt/log"])
def test_a_log_elsewhere_is_no_directory_of_this_process(url: str) -> None:
    with pytest.raises(ConfigurationError, match="are not supported"):
        log_path(url)


@pytest.mark.parametrize("url", ["~/log", "~airflow/log", "file:~/log"])
def test_a_home_directory_is_not_guessed(url: str) -> None:
    with pytest.raises(ConfigurationError, match="another directory for each user"):
        log_path(url)
