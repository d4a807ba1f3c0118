"""What `airflow providers` knows of this package. Airflow imports it at every start: nothing heavy here."""

from __future__ import annotations

from typing import Any, Final

INTEGRATION: Final = "Parallel Apply"


def get_provider_info() -> dict[str, Any]:
    """Provider metadata, in the form of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-provider-parallel-apply",
        "name": INTEGRATION,
        "description": "Replays an ordered change log onto a target in parallel, in order, exactly once.",
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "tags": ["software"],
            }
        ],
        "operators": [_modules("operators.capture", "operators.router", "operators.coordinator", "operators.apply")],
        "sensors": [_modules("sensors.changes")],
        "triggers": [_modules("triggers.changes", "triggers.fence")],
        "extra-links": ["airflow_parallel_apply.operators.links.SparkLink"],
        "hooks": [_modules("hooks.pipeline")],
        "connection-types": [
            {
                "connection-type": "parallel_apply",
                "hook-class-name": "airflow_parallel_apply.hooks.pipeline.PipelineHook",
                "hook-name": "Parallel Apply (PostgreSQL)",
            }
        ],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {
        "integration-name": INTEGRATION,
        "python-modules": [f"airflow_parallel_apply.{name}" for name in names],
    }
