"""Exports what a pipeline has captured, or the rows of a query, as files or as messages of Kafka topics.

Trigger it with a form, or give it a schedule: each run adds the changes behind those that the place has, or the query's
rows. Nothing is there twice, whatever is cleared, retried or triggered meanwhile.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from airflow_parallel_apply.operators.encode import EncodeOperator

FORMATS = ["", "parquet", "avro", "json", "debezium", "csv", "arrow"]
QUERY = "A query instead of changes"

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
            type=["null", "string"],
            description="A directory that every worker sees, a URL such as s3://bucket/changes, or topics, such as "
            "kafka://broker:9092/prefix.",
        ),
        "place_conn_id": Param(
            "",
            type=["null", "string"],
            description="Instead of place: a connection of type parallel_apply_kafka, for topics with a password.",
        ),
        "format": Param(
            "",
            type=["null", "string"],
            enum=[*FORMATS, None],
            description="One for each place; empty: parquet for files, json for topics (or avro, debezium).",
        ),
        "tables": Param(["*.*"], type="array", items={"type": "string"}, description="Patterns over schema.table."),
        "threads": Param(2, type="integer", minimum=1, maximum=256, description="Workers side by side."),
        "log_url": Param("", type=["null", "string"], description="The log; empty: that of the pipeline's own DAG."),
        "sql": Param("", type=["null", "string"], format="multiline", section=QUERY, description="One SELECT."),
        "source_conn_id": Param(
            "parallel_apply_source", type="string", section=QUERY, description="The database that runs it."
        ),
        "table": Param(
            "query.rows", type="string", section=QUERY, description="schema.table, which names its folder or topic."
        ),
        "key": Param(
            "", type=["null", "string"], section=QUERY, description="Columns of its messages' key, by commas."
        ),
    },
):
    EncodeOperator(
        task_id="export",
        pipeline="{{ params.pipeline }}",
        place="{{ params.place or '' }}",
        place_conn_id="{{ params.place_conn_id or '' }}",
        format="{{ params.format or '' }}",
        tables="{{ params.tables | tojson }}",
        threads="{{ params.threads }}",
        log_url="{{ params.log_url or '' }}",
        sql="{{ params.sql or '' }}",
        source_conn_id="{{ params.source_conn_id }}",
        table="{{ params.table }}",
        key="{{ params.key or '' }}",
    )
