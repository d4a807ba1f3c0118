"""`parallel-apply check`: everything that would stand in the way of a run, before it starts."""

from airflow_parallel_apply.pipeline.check.check import Checked, check_pipeline

__all__ = ["Checked", "check_pipeline"]
