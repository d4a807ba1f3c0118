"""A range of a log as files in a format that others read."""

from airflow_parallel_apply.pipeline.encode.export.export import ExportReport, export_changes
from airflow_parallel_apply.pipeline.encode.export.options import ExportOptions

__all__ = ["ExportOptions", "ExportReport", "export_changes"]
