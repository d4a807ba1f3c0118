"""The queue drags in little: its words need no database driver, and nothing of it needs Airflow or Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("airflow_parallel_apply.queue", "airflow pyspark pyarrow psycopg typer rich grpc sortedcontainers"),
        ("airflow_parallel_apply.queue.memory", "airflow pyspark pyarrow psycopg typer rich grpc"),
        ("airflow_parallel_apply.queue.service.process", "airflow pyspark pyarrow psycopg typer rich"),
        ("airflow_parallel_apply.queue.client", "airflow pyspark pyarrow psycopg typer rich prometheus_client"),
        ("airflow_parallel_apply.queue.postgres", "airflow pyspark pyarrow typer rich"),
        ("airflow_parallel_apply.queue.__main__", "airflow pyspark pyarrow psycopg grpc sortedcontainers"),
    ],
)
def test_the_queue_imports_where_what_it_does_not_need_is_not_installed(module: str, absent: str) -> None:
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({absent.split()!r}))\n"  # None: importing it raises ImportError
        f"importlib.import_module({module!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
