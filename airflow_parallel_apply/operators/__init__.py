"""The tasks of a run: capture, route, open, apply, close; and stop. The export of a log."""

from airflow_parallel_apply.operators.apply import SparkApplyOperator
from airflow_parallel_apply.operators.capture import CaptureOperator
from airflow_parallel_apply.operators.coordinator import CoordinatorOperator
from airflow_parallel_apply.operators.encode import EncodeOperator
from airflow_parallel_apply.operators.router import RouterOperator

__all__ = ["CaptureOperator", "CoordinatorOperator", "EncodeOperator", "RouterOperator", "SparkApplyOperator"]
