"""Texts that are too long only because the target's database counts bytes: its encoding knows no characters."""

from __future__ import annotations

from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.target.postgres.catalog.columns import WITHOUT_LETTERS
from airflow_parallel_apply.postgres import sqlstate


def name_encoding(connection: psycopg.Connection[Any], error: ParallelApplyError, cause: BaseException | None) -> None:
    """Give an error of a text's length the encoding, where that is the reason or may be."""
    if not isinstance(cause, psycopg.Error) or cause.sqlstate != sqlstate.STRING_TOO_LONG:
        return
    if connection.info.parameter_status("server_encoding") == WITHOUT_LETTERS:
        error.hint = (
            f"The target's database has the encoding {WITHOUT_LETTERS}, which counts bytes as letters: use one "
            "with the encoding UTF8. If the column is narrower than the source's, too, `parallel-apply check` has the "
            "ALTER TABLE."
        )
