"""A router's process chooses Arrow's memory pool before Arrow is there, and a user's own choice wins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from airflow_parallel_apply.router.memory_pool import VARIABLE

RUN = """
import runpy, sys
sys.argv[1:] = ["serve", "--help"]
try:
    runpy.run_module("airflow_parallel_apply.router", run_name="__main__", alter_sys=True)
except SystemExit:
    import pyarrow
    print(pyarrow.default_memory_pool().backend_name)
"""


@pytest.mark.parametrize(("chosen", "found"), [(None, "jemalloc"), ("system", "system")])
def test_a_routers_process_has_the_pool_that_was_chosen(chosen: str | None, found: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if chosen is not None:
        environment[VARIABLE] = chosen
    run = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.splitlines()[-1] == found
