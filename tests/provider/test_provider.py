"""The metadata that Airflow reads: it validates, and every module and class that it names is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.resources import files

import jsonschema
from airflow.sdk.module_loading import import_string

from airflow_parallel_apply.get_provider_info import get_provider_info


def test_the_metadata_fit_airflows_schema() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_everything_that_the_metadata_name_exists() -> None:
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for entry in info[kind]:
            for module in entry["python-modules"]:
                import_module(module)
    for name in info["extra-links"]:
        import_string(name)


def test_airflow_lists_the_provider() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ.copy(),
    )
    names = {row["package_name"] for row in json.loads(done.stdout[done.stdout.index("[{") :])}
    assert "airflow-provider-parallel-apply" in names
