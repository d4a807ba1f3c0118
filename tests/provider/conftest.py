"""An Airflow of its own for these tests: a home, a metadata database, two connections that nobody opens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="session", autouse=True)
def schemas_checked_once() -> Iterator[None]:
    """Airflow checks the schema of a parameter each time that it looks at its value, hundreds of times a run."""
    from jsonschema import Draft202012Validator

    check_schema = Draft202012Validator.check_schema
    checked: set[str] = set()

    def check_once(_: type, schema: Any, *options: Any, **named: Any) -> None:
        text = json.dumps(schema, sort_keys=True, default=repr)
        if text not in checked:
            check_schema(schema, *options, **named)
            checked.add(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Draft202012Validator, "check_schema", classmethod(check_once))
        yield


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PARALLEL_APPLY_SOURCE", "postgresql://reader:secret-1@source.invalid:5433/shop")
    monkeypatch.setenv("AIRFLOW_CONN_PARALLEL_APPLY_TARGET", "postgresql://writer:secret-2@target.invalid/warehouse")


def define(monkeypatch: pytest.MonkeyPatch, conn_id: str, value: str | dict[str, object]) -> None:
    """A connection in the environment, where Airflow looks first."""
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value if isinstance(value, str) else json.dumps(value))
