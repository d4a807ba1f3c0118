"""`python -m airflow_parallel_apply.router`: see `commands`."""

from __future__ import annotations

import os

from airflow_parallel_apply.router.memory_pool import choose_memory_pool

if __name__ == "__main__":
    choose_memory_pool(os.environ)
    # Late: Arrow comes with it.
    from airflow_parallel_apply.router.commands import app

    app(prog_name="python -m airflow_parallel_apply.router")
