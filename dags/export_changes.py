"""Exports what the DAG `parallel_apply` has captured, as files that DuckDB, Spark, pandas and others read.

Trigger it with a form, or give it a schedule: each run writes the changes behind those that the place has. Nothing is
written twice, whatever is cleared, retried or triggered meanwhile.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from airflow_parallel_apply.operators.encode import EncodeOperator

FORMATS = ["parquet", "avro", "json", "debezium", "csv", "arrow"]

with DAG(
    "export_changes",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    is_paused_upon_creation=False,
    tags=["replication", "cdc", "export"],
    doc_md=__doc__,
    params={
        "pipeline": Param("demo", type="string", minLength=1, description="The pipeline whose log is exported."),
        "place": Param(
            "/tmp/parallel_apply_export",  # noqa: S108
            type="string",
            minLength=1,
            description="A directory that every worker sees, or a URL such as s3://bucket/changes.",
        ),
        "format": Param("parquet", type="string", enum=FORMATS, description="One for each place."),
        "tables": Param(["*.*"], type="array", items={"type": "string"}, description="Patterns over schema.table."),
        "threads": Param(2, type="integer", minimum=1, maximum=256, description="Workers side by side."),
        "log_url": Param("", type=["null", "string"], description="The log; empty: that of the pipeline's own DAG."),
    },
):
    EncodeOperator(
        task_id="export",
        pipeline="{{ params.pipeline }}",
        place="{{ params.place }}",
        format="{{ params.format }}",
        tables="{{ params.tables | tojson }}",
        threads="{{ params.threads }}",
        log_url="{{ params.log_url or '' }}",
    )
