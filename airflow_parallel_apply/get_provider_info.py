"""Describes this package to `airflow providers`. Airflow imports it at every start, so it imports nothing heavy."""

from __future__ import annotations

from typing import Any, Final

INTEGRATION: Final = "Parallel Apply"


_TLS_FIELDS: Final[dict[str, Any]] = {
    "ca": {
        "label": "Authority",
        "description": "With grpcs: PEM file, on every worker, of the authority that signed the service's certificate. "
        "Empty: those of the system.",
        "schema": {"type": ["string", "null"]},
    },
    "cert": {
        "label": "Certificate",
        "description": "With grpcs, where the service asks for it: PEM file of the caller's own.",
        "schema": {"type": ["string", "null"]},
    },
    "key": {
        "label": "Key",
        "description": "Of that certificate, a PEM file.",
        "schema": {"type": ["string", "null"]},
    },
}


def get_provider_info() -> dict[str, Any]:
    """Provider metadata, in the form of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-provider-parallel-apply",
        "name": INTEGRATION,
        "description": "Replays an ordered change log onto a target in parallel, in order, exactly once.",
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "tags": ["software"],
            }
        ],
        "operators": [
            _modules(
                "operators.capture",
                "operators.router",
                "operators.coordinator",
                "operators.apply",
                "operators.encode",
                "operators.compact",
            )
        ],
        "sensors": [_modules("sensors.changes", "sensors.queue")],
        "triggers": [_modules("triggers.changes", "triggers.lease", "triggers.source_time", "triggers.queue")],
        "extra-links": ["airflow_parallel_apply.operators.links.SparkLink"],
        "hooks": [_modules("hooks.pipeline", "hooks.queue", "hooks.router", "hooks.targets")],
        "connection-types": [
            {
                "connection-type": "parallel_apply",
                "hook-class-name": "airflow_parallel_apply.hooks.pipeline.PipelineHook",
                "hook-name": "Parallel Apply (PostgreSQL)",
            },
            {
                "connection-type": "parallel_apply_files",
                "hook-class-name": "airflow_parallel_apply.hooks.targets.FilesHook",
                "hook-name": "Parallel Apply (files)",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {"host": "Directory", "login": "Access key", "password": "Secret key"},
                    "placeholders": {"host": "s3://lake/shop or file:///mnt/lake/shop"},
                },
                "conn-fields": {
                    "format": {
                        "label": "Format",
                        "description": "The format of new files.",
                        "schema": {
                            "type": "string",
                            "enum": ["parquet", "arrow", "avro", "json", "csv"],
                            "default": "parquet",
                        },
                    },
                    "text": {
                        "label": "Columns as text",
                        "description": "Columns, as schema.table.column, that keep the source's text; between commas.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "region": {
                        "label": "Region",
                        "description": "The bucket's region; empty for the machine's own setting.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "endpoint_url": {
                        "label": "Endpoint",
                        "description": "URL of the service, where s3:// is not AWS's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            },
            {
                "connection-type": "parallel_apply_delta",
                "hook-class-name": "airflow_parallel_apply.hooks.targets.DeltaHook",
                "hook-name": "Parallel Apply (Delta Lake)",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {"host": "Directory", "login": "Access key", "password": "Secret key"},
                    "placeholders": {"host": "s3://lake/shop or file:///mnt/lake/shop"},
                },
                "conn-fields": {
                    "region": {
                        "label": "Region",
                        "description": "The bucket's region; empty for the machine's own setting.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "feed": {
                        "label": "Feed of changes",
                        "description": "Tables of every change, instead of the current rows.",
                        "schema": {"type": "boolean", "default": False},
                    },
                    "endpoint_url": {
                        "label": "Endpoint",
                        "description": "URL of the service, where s3:// is not AWS's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            },
            {
                "connection-type": "parallel_apply_mariadb",
                "hook-class-name": "airflow_parallel_apply.hooks.targets.MariaDbHook",
                "hook-name": "Parallel Apply (MariaDB)",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {"schema": "Database"},
                    "placeholders": {"host": "db.example", "port": "3306", "schema": "shop"},
                },
                "conn-fields": {
                    "source_schema": {
                        "label": "Schema of the source",
                        "description": "The schema whose tables lie in this database; those of another one lie in a "
                        "database of its name.",
                        "schema": {"type": "string", "default": "public"},
                    },
                    "computed_alike": {
                        "label": "Columns computed alike",
                        "description": "Generated columns, schema.table.column with commas between them, of which "
                        "you know that both sides compute the same values.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssl_ca": {
                        "label": "Authority",
                        "description": "PEM file, on every worker, of the authority that signed the server's "
                        "certificate. Empty: without TLS.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssl_cert": {
                        "label": "Certificate",
                        "description": "Where the server asks for it: PEM file of the user's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "ssl_key": {
                        "label": "Key",
                        "description": "Of that certificate, a PEM file.",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            },
            {
                "connection-type": "parallel_apply_kafka",
                "hook-class-name": "airflow_parallel_apply.hooks.targets.KafkaHook",
                "hook-name": "Parallel Apply (Kafka)",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {"host": "Brokers", "schema": "Prefix of the topics"},
                    "placeholders": {"host": "broker1:9092,broker2:9092", "schema": "shop"},
                },
                "conn-fields": {
                    "staging": {
                        "label": "Staging",
                        "description": "A directory, or its URL, that lanes and Spark's workers see.",
                        "schema": {"type": "string"},
                    },
                    "format": {
                        "label": "Format",
                        "description": "The form of messages; avro needs a schema registry.",
                        "schema": {"type": "string", "enum": ["json", "debezium", "avro"], "default": "json"},
                    },
                    "partition_by": {
                        "label": "Partition by",
                        "description": "What chooses a message's partition.",
                        "schema": {"type": "string", "enum": ["key", "channel"], "default": "key"},
                    },
                    "tombstones": {
                        "label": "Tombstones",
                        "description": "Send one behind each deletion: for compacted topics.",
                        "schema": {"type": "boolean", "default": False},
                    },
                    "registry": {
                        "label": "Schema registry",
                        "description": "Its URL, for avro.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                },
            },
            {
                "connection-type": "parallel_apply_queue",
                "hook-class-name": "airflow_parallel_apply.hooks.queue.QueueHook",
                "hook-name": "Parallel Apply Queue",
                "ui-field-behaviour": {
                    "hidden-fields": [],
                    "relabeling": {
                        "login": "User (PostgreSQL)",
                        "password": "Token, or password (PostgreSQL)",
                        "schema": "Database (PostgreSQL)",
                    },
                    "placeholders": {"host": "queue.example", "port": "7411"},
                },
                "conn-fields": {
                    "protocol": {
                        "label": "Protocol",
                        "description": "grpcs: a queue service; grpc: one on the same host, without TLS; postgresql: "
                        "tables in a database.",
                        "schema": {"type": "string", "enum": ["grpcs", "grpc", "postgresql"], "default": "grpcs"},
                    },
                    **_TLS_FIELDS,
                },
            },
            {
                "connection-type": "parallel_apply_router",
                "hook-class-name": "airflow_parallel_apply.hooks.router.RouterHook",
                "hook-name": "Parallel Apply Router",
                "ui-field-behaviour": {
                    "hidden-fields": ["login", "schema"],
                    "relabeling": {"password": "Token"},
                    "placeholders": {"host": "router.example", "port": "7413"},
                },
                "conn-fields": {
                    "protocol": {
                        "label": "Protocol",
                        "description": "grpcs: a router; grpc: one on the same host, without TLS.",
                        "schema": {"type": "string", "enum": ["grpcs", "grpc"], "default": "grpcs"},
                    },
                    **_TLS_FIELDS,
                },
            },
        ],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {
        "integration-name": INTEGRATION,
        "python-modules": [f"airflow_parallel_apply.{name}" for name in names],
    }
