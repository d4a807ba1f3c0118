"""Spark's Python daemon, from which it forks the workers of a session, with less to import in each of them.

Spark puts an archive of its Python modules before the installed ones. An archive holds no bytecode, so the daemon and
each worker of each session would compile pyspark anew, for half a second of a processor. The embedded server is started
from the installed pyspark, so that is the same release.

What every worker imports and what starts no thread is imported before the fork; pyarrow starts one, which a fork does
not take along. Together they halve what a session's first job costs.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from airflow_parallel_apply.pipeline.open import DRIVERS

MODULE: Final = "airflow_parallel_apply.spark.daemon"


def main() -> None:
    """Run as `python -m` by Spark, which names its worker module as the argument."""
    archives = Path(os.environ["SPARK_HOME"], "python", "lib")
    sys.path[:] = [entry for entry in sys.path if Path(entry).parent != archives]

    import pyspark.worker  # noqa: F401  # imported for the workers
    from pyspark.daemon import manager

    for driver in DRIVERS:
        import_module(driver)

    manager()


if __name__ == "__main__":
    main()
