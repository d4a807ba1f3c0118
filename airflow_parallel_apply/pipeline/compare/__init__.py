"""Compares source and target: whether they hold the same rows, and which rows differ."""

from airflow_parallel_apply.pipeline.compare.compare import Comparison, Difference, TableComparison, compare

__all__ = ["Comparison", "Difference", "TableComparison", "compare"]
