"""The lock is complete, names no address, and is what is installed where it matters."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PINS = {name: Version(pin) for name, pin in re.findall(r"^([a-z0-9-]+)(?:\[.*?\])?==(\S+)", LOCK, re.MULTILINE)}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _declared() -> list[Requirement]:
    project = PYPROJECT["project"]
    listed = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
        *(line for group in PYPROJECT["dependency-groups"].values() for line in group),
        *PYPROJECT["build-system"]["requires"],
    ]
    return [Requirement(line) for line in listed]


def test_lock_names_no_address() -> None:
    assert "://" not in LOCK
    assert not re.search(r"^\s*(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)\b", LOCK, re.MULTILINE)
    assert " @ " not in LOCK


def test_every_pin_of_the_lock_has_a_hash() -> None:
    blocks = re.findall(r"^\S.*(?:\n +--hash=.*)*", LOCK, re.MULTILINE)
    assert blocks
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("requirement", _declared(), ids=lambda requirement: requirement.name)
def test_lock_satisfies_what_pyproject_declares(requirement: Requirement) -> None:
    pin = PINS.get(canonicalize_name(requirement.name))
    assert pin is not None, f"{requirement.name} is not in requirements.lock: make lock"
    assert requirement.specifier.contains(pin), f"requirements.lock has {requirement.name} {pin}: make lock"


def test_pyspark_and_pyspark_client_are_one_version_since_they_own_the_same_files() -> None:
    assert PINS["pyspark"] == PINS["pyspark-client"]
    assert version("pyspark") == version("pyspark-client") == str(PINS["pyspark"])


def test_pandas_is_one_that_spark_accepts() -> None:
    assert PINS["pandas"].major < 3
    assert Version(version("pandas")).major < 3


def test_spark_provider_wants_no_other_client_than_the_pinned() -> None:
    listed = requires("apache-airflow-providers-apache-spark") or []
    wanted = [Requirement(line) for line in listed if Requirement(line).name.startswith("pyspark")]
    assert wanted
    assert [str(one) for one in wanted if not one.specifier.contains(PINS["pyspark"])] == []
