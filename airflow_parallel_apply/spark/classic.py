"""The session of the driver that runs here: what `spark-submit` gave this process. One application, one session."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from airflow_parallel_apply.spark.faults import spark_errors
from airflow_parallel_apply.spark.session import SESSION_SETTINGS


class ClassicAccess:
    """Implements `SparkAccess` in a driver. An application that the cluster ended is followed by another one."""

    def __init__(self) -> None:
        self._opening = threading.Lock()

    def open(self) -> Any:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        with self._opening, spark_errors("open a Spark session"):
            active = SparkContext._active_spark_context
            if active is not None and active._jsc.sc().isStopped():
                # The JVM's context is over, and Python's would be handed out again.
                active.stop()
            session = SparkSession.builder.getOrCreate()
            for name, value in SESSION_SETTINGS.items():
                session.conf.set(name, value)
            return session

    def close(self, session: Any) -> None:
        """Nothing: the driver's end ends the application."""

    @contextlib.contextmanager
    def tagged(self, session: Any, tag: str) -> Iterator[None]:
        session.sparkContext.addJobTag(tag)
        try:
            yield
        finally:
            session.sparkContext.removeJobTag(tag)

    def interrupt(self, session: Any, tag: str) -> None:
        with spark_errors("interrupt a Spark job"):
            session.sparkContext.cancelJobsWithTag(tag)


def executor_count() -> int:
    """The number of executors that this driver's application has now, without the driver. Errors: `Unavailable`."""
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    with spark_errors("count executors"):
        if active is None or active._jsc.sc().isStopped():
            return 0
        return len(active._jsc.sc().statusTracker().getExecutorInfos()) - 1
