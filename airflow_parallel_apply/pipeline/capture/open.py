"""Opens captures by the scheme of the source's endpoint."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.capture.capture import Capture
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.source.open import open_source


def open_capture(endpoint: Endpoint, config: PipelineConfig) -> Capture:
    """For one thread; connects when first used. Errors: `ConfigurationError` for an unknown scheme."""
    return Capture(open_source(endpoint, config), config)
