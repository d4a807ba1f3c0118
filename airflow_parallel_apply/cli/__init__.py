"""`parallel-apply`: what a person asks of a pipeline outside its runs, from the first check to its removal."""

from airflow_parallel_apply.cli import (
    adopting,
    compacting,
    exporting,
    preparing,
    recopying,
    recovering,
    removing,
    sending,
    vouching,
    watching,
)
from airflow_parallel_apply.cli.app import app

__all__ = [
    "adopting",
    "app",
    "compacting",
    "exporting",
    "main",
    "preparing",
    "recopying",
    "recovering",
    "removing",
    "sending",
    "vouching",
    "watching",
]


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="parallel-apply")
