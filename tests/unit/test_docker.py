"""The image and the compose file, as far as they can be judged without a container engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

DOCKER = Path(__file__).resolve().parents[2] / "docker"
COMPOSE = (DOCKER / "compose.yaml").read_text()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE)


def test_dockerfile_has_no_finding_of_hadolint() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None, "hadolint is pinned in requirements.lock: make install"
    done = subprocess.run([hadolint, "--no-color", str(DOCKER / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_compose_file_is_valid_by_the_specification(compose: dict[str, Any]) -> None:
    schema = files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    jsonschema.validate(compose, json.loads(schema.read_text()))


def test_every_published_port_is_on_loopback(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_compose_file_holds_no_secret(compose: dict[str, Any]) -> None:
    secrets = re.compile(r"PASSWORD$|SECRET|FERNET_KEY")
    for name, service in compose["services"].items():
        for variable, value in service.get("environment", {}).items():
            assert not secrets.search(variable) or value.startswith("${"), f"{name}: {variable}"
    assert re.findall(r"://\w+:(?!\$\{)", COMPOSE) == []


def test_every_dependency_and_volume_is_declared(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert set(service.get("depends_on", ())) <= set(compose["services"]), name
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert volumes <= set(compose["volumes"]), name


def test_airflow_and_spark_share_one_image_and_one_log(compose: dict[str, Any]) -> None:
    ours = {name: one for name, one in compose["services"].items() if not one["image"].startswith("postgres")}
    assert {one["image"] for one in ours.values()} == {"airflow-parallel-apply:local"}
    assert {"scheduler", "spark-connect", "spark-worker-1", "spark-worker-2"} <= set(ours)
    for name, service in ours.items():
        assert "log:/var/lib/parallel_apply/log" in service["volumes"], name


def test_image_has_the_airflow_of_the_lock() -> None:
    lock = (DOCKER.parent / "requirements.lock").read_text()
    pinned = re.search(r"^apache-airflow==(\S+)", lock, re.MULTILINE)
    told = re.search(r"^ARG AIRFLOW_VERSION=(\S+)", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert pinned is not None
    assert told is not None
    assert pinned[1] == told[1]
