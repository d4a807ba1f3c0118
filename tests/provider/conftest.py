"""An Airflow of its own for these tests: a home, a metadata database, two connections that nobody opens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.provider.fakes import pipeline  # noqa: F401  # a fixture

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """With a migrated metadata database."""
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True, env=os.environ.copy()
    )
    return Path(os.environ["AIRFLOW_HOME"])


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PARALLEL_APPLY_SOURCE", "postgresql://reader:secret-1@source.invalid:5433/shop")
    monkeypatch.setenv("AIRFLOW_CONN_PARALLEL_APPLY_TARGET", "postgresql://writer:secret-2@target.invalid/warehouse")
