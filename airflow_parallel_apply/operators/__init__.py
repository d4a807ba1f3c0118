"""The tasks of a run: capture, route, open, apply, close; and stop. Exports, and compactions."""

from airflow_parallel_apply.operators.apply import SparkApplyOperator
from airflow_parallel_apply.operators.capture import CaptureOperator
from airflow_parallel_apply.operators.compact import CompactOperator
from airflow_parallel_apply.operators.coordinator import CoordinatorOperator
from airflow_parallel_apply.operators.encode import EncodeOperator
from airflow_parallel_apply.operators.router import RouterOperator

__all__ = [
    "CaptureOperator",
    "CompactOperator",
    "CoordinatorOperator",
    "EncodeOperator",
    "RouterOperator",
    "SparkApplyOperator",
]
