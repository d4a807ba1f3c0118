"""Exports: a range of a log, or the rows of a query, as files that others read, or as messages of topics."""

from airflow_parallel_apply.pipeline.export.export import export_changes, export_query
from airflow_parallel_apply.pipeline.export.options import ExportOptions, QueryOptions
from airflow_parallel_apply.pipeline.export.report import ExportReport

__all__ = ["ExportOptions", "ExportReport", "QueryOptions", "export_changes", "export_query"]
