"""A run, step by step, as Airflow's tasks call it: prepare, capture, open, apply (a lane), close.

Each step may be repeated, killed and repeated. What they share lies in the target and the log (law 8); what they
hand to each other through XCom is a copy for people and for addressing.
"""

from airflow_parallel_apply.pipeline.run.applying import apply, waiting_lane
from airflow_parallel_apply.pipeline.run.closing import close_run, request_stop
from airflow_parallel_apply.pipeline.run.opening import open_run
from airflow_parallel_apply.pipeline.run.preparing import FIRST_CAPTURE_CHANGES, capture, prepare
from airflow_parallel_apply.pipeline.run.shared_session import shared_session
from airflow_parallel_apply.pipeline.run.values import CaptureReport, ClosedRun, OpenedRun

__all__ = [
    "FIRST_CAPTURE_CHANGES",
    "CaptureReport",
    "ClosedRun",
    "OpenedRun",
    "apply",
    "capture",
    "close_run",
    "open_run",
    "prepare",
    "request_stop",
    "shared_session",
    "waiting_lane",
]
