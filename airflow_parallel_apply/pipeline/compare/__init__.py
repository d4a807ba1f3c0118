"""Whether source and target hold the same rows, and where not."""

from airflow_parallel_apply.pipeline.compare.compare import Comparison, Difference, TableComparison, compare

__all__ = ["Comparison", "Difference", "TableComparison", "compare"]
