"""The program that `spark-submit` runs: `driver.py SOCKET`. Started by `process.DriverProcess` only."""

from __future__ import annotations

import logging
import sys
from multiprocessing.connection import Client
from pathlib import Path

from airflow_parallel_apply.pipeline.errors import ParallelApplyError, Unavailable
from airflow_parallel_apply.queue.model import QueueError
from airflow_parallel_apply.spark.classic import ClassicAccess
from airflow_parallel_apply.spark.submitted.copying import serve_copies
from airflow_parallel_apply.spark.submitted.lane import run_lane
from airflow_parallel_apply.spark.submitted.link import LinkHandler, TaskLink
from airflow_parallel_apply.spark.submitted.looking import serve_look
from airflow_parallel_apply.spark.submitted.messages import CopyWork, Done, LaneWork, LookWork, Started
from airflow_parallel_apply.spark.worker import die_with_parent

_logger = logging.getLogger("airflow_parallel_apply.spark.submitted")


def main(address: str) -> None:
    """Be what the task says. The parent is the JVM, which the application lives in."""
    die_with_parent()
    with Client(address, family="AF_UNIX") as connection:
        link = TaskLink(connection, Path(address).parent)
        logger = logging.getLogger("airflow_parallel_apply")
        logger.setLevel(logging.INFO)
        logger.addHandler(LinkHandler(link))
        try:
            work = link.first()
            access = ClassicAccess()
            try:
                context = access.open().sparkContext
            except Unavailable:
                # Spark has said why; its task reads that, and knows where.
                sys.exit(1)
            link.send(Started(application_id=context.applicationId, ui_url=context.uiWebUrl))
            match work:
                case LaneWork():
                    link.send(Done(result=run_lane(work, link, access)))
                case CopyWork():
                    serve_copies(work, link, access)
                case LookWork():
                    serve_look(work, link, access)
        except (ParallelApplyError, QueueError) as error:
            link.send_error(error)
        except Exception as error:
            _logger.exception("the driver failed")
            link.send_error(ParallelApplyError(f"{type(error).__name__}: {error}", op="submit"))


if __name__ == "__main__":
    main(sys.argv[1])
