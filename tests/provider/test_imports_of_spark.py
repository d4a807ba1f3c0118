"""Nobody imports pyspark in two threads at once: the one may find it half made."""

from __future__ import annotations

import subprocess
import sys

from tests.support.variants import gated

SCRIPT = """
import sys, threading
found = []
threading.Thread.start = lambda thread: found.append((thread.name, "pyspark.sql.types" in sys.modules))
from airflow_parallel_apply.operators.spark import begin
from airflow_parallel_apply.spark.endpoint import EMBEDDED_SPARK
begin(EMBEDDED_SPARK)
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.spark.copier import spark_copier
side = Endpoint(conn_id="side", url="dbname=none")
with spark_copier("sc://localhost:1", side, side) as copier:
    copier.begin()
print(found)
"""


@gated
def test_pyspark_is_imported_before_a_thread_that_uses_it_begins() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[('start spark', True), ('warm up spark', True)]"
