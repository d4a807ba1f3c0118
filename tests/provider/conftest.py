"""An Airflow of its own for these tests: a home, a metadata database, two connections that nobody opens."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.provider.fakes import pipeline  # noqa: F401  # a fixture

REPOSITORY = Path(__file__).parents[2]

# Airflow reads its home when it is imported, which the test modules below do.
_HOME = Path(tempfile.mkdtemp(prefix="parallel-apply-airflow-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = str(_HOME)
(_HOME / "airflow.cfg").write_text(
    f"""\
[core]
dags_folder = {REPOSITORY / "dags"}
load_examples = False
[logging]
logging_level = WARNING
"""
)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """With a migrated metadata database."""
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True, env=os.environ.copy()
    )
    return _HOME


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PARALLEL_APPLY_SOURCE", "postgresql://reader:secret-1@source.invalid:5433/shop")
    monkeypatch.setenv("AIRFLOW_CONN_PARALLEL_APPLY_TARGET", "postgresql://writer:secret-2@target.invalid/warehouse")
