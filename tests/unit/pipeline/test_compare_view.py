"""A comparison shows the same, however narrow the terminal is."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from airflow_parallel_apply.cli.compare_view import comparison_view
from airflow_parallel_apply.pipeline.compare import TableComparison
from airflow_parallel_apply.pipeline.compare.compare import Comparison


def test_no_name_and_no_checksum_is_cut() -> None:
    one = TableComparison(
        name="warehouse.a_rather_long_name_of_a_table",
        source_rows=1_234_567,
        target_rows=1_234_567,
        source_checksum="0123456789abcdef",
        target_checksum="0123456789abcdef",
    )
    shown = StringIO()
    Console(file=shown, width=60).print(comparison_view(Comparison(tables=(one,))))
    assert "…" not in shown.getvalue()
    assert "equal" in shown.getvalue()
